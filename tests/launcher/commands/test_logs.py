"""`baton logs` prints what is kept of a log, follows it through rotations, and ends with its writer."""

import threading
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.commands.logs import followed
from launcher.instance.instances import Instance, Record
from launcher.instance.log_file import LogFile
from launcher.instance.state_directory import new_log
from tests.waiting import wait_until

FILE_BYTES = 1 << 16


def silent(sentence: str) -> None:
    pytest.fail(sentence)


def entry(service: str, number: int) -> bytes:
    return f"{service:<9} | line {number} {'x' * 100}\n".encode()


def numbers(text: str) -> list[int]:
    return [int(line.split()[3]) for line in text.splitlines()]


def test_the_last_lines_of_a_service_come_from_all_files(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with new_log(FILE_BYTES, 3, silent) as log, Record(Instance("u", 1, "m", 0.0, str(log.path)), silent):
        for number in range(1000):  # about two files
            log.write(entry("decode-0" if number % 2 else "decode-10", number))
        assert main(["logs", "--lines=0"]) == 0
        assert numbers(capfdbinary.readouterr().out.decode()) == list(range(1000))
        assert main(["logs", "decode-0", "--lines=400"]) == 0
        assert numbers(capfdbinary.readouterr().out.decode()) == list(range(201, 1000, 2))
        assert main(["logs", "decode", "--lines=3"]) == 0
        assert numbers(capfdbinary.readouterr().out.decode()) == [997, 998, 999]


def test_without_an_instance_the_last_log_is_printed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["logs"]) == 2
    assert b"there is no log in " in capfdbinary.readouterr().err
    with new_log(FILE_BYTES, 1, silent) as log:
        log.write(entry("gateway", 1))
    assert main(["logs", "--follow"]) == 0, "it ends, since nobody writes any more"
    assert numbers(capfdbinary.readouterr().out.decode()) == [1]
    assert main(["logs", "decode"]) == 0
    assert b"no lines of 'decode' in " in capfdbinary.readouterr().err


def test_new_lines_are_followed_through_a_rotation_to_the_end(tmp_path: Path) -> None:
    path, found, open_ = tmp_path / "log", list[bytes](), [True]
    log = LogFile(path, FILE_BYTES, 2, silent)
    log.write(entry("gateway", 0))

    lines = followed(path, path.open("rb"), lambda: open_[0])
    assert next(lines) == entry("gateway", 0)
    thread = threading.Thread(target=lambda: found.extend(lines))
    thread.start()

    def wait_for(count: int) -> None:
        wait_until(lambda: len(found) >= count, "the lines")

    try:
        for number in range(1, 800):  # more than one file
            log.write(entry("gateway", number))
            if number % 100 == 0:  # the reader is not a file behind
                wait_for(number)
    finally:
        open_[0] = False
        thread.join()
    log.close()
    assert found == [entry("gateway", number) for number in range(1, 800)]
