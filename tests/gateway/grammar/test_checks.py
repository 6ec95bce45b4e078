"""What would cost too much is refused by name, soon, in a process of its own, and takes nothing with it."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from checkpoints.grammars import MAX_GRAMMAR_BYTES
from gateway.errors import APIError
from gateway.grammar import checks as checks_module
from gateway.grammar.checks import GrammarChecks
from gateway.grammar.forms import AnswerForm, grammar_of
from infra.fair_queueing.turns import TenantShare
from tests.waiting import DEADLINE_S

Test = Callable[[GrammarChecks], Awaitable[None]]

DEEP: Any = {}
for _ in range(300):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
PATTERNS = {
    "properties": {f"k{i}": {"type": "string", "pattern": f"^[a-z]{{1,{i % 50 + 1}}}x{i}$"} for i in range(3000)}
}

CHAIN = [f"r{i}: r{i + 1} r{i + 1} | r{i + 1}" for i in range(9000)]
BOMBS = {
    "nesting": AnswerForm("json_schema", DEEP),
    "nesting as text": AnswerForm("json_schema", '{"items":' * 40000 + "{}" + "}" * 40000),
    "a million states": AnswerForm("json_schema", {"enum": [f"{i:x}" * 8 for i in range(20000)]}),
    "many patterns": AnswerForm("json_schema", PATTERNS),
    "bytes": AnswerForm("grammar", "start: " + "a" * MAX_GRAMMAR_BYTES),
    "a long regex": AnswerForm("regex", "(a|b)" * 4000),
    "parentheses": AnswerForm("regex", "(" * 5000 + "a" + ")" * 5000),
    "rules": AnswerForm("grammar", "\n".join(["start: r0", *CHAIN, 'r9000: "a"'])),
    "ambiguity": AnswerForm("grammar", 'start: e\ne: e e e | e e | /./ | ""'),
    "GBNF": AnswerForm("grammar", "root ::= " + "(" * 20000 + '"a"' + ")" * 20000),
}  # fmt: skip
WIDE = {"type": "object", "properties": {f"p{i}": {} for i in range(20)}}
WRONG = {
    "a keyword that cannot be kept": (AnswerForm("json_schema", {"type": "array", "uniqueItems": True}), "uniqueItems"),
    "a format that is not known": (AnswerForm("json_schema", {"type": "string", "format": "phone"}), "phone"),
    "too many counts": (
        AnswerForm("json_schema", {**WIDE, "minProperties": 5}),
        "at most 128 choices between the optional",
    ),
    "nothing fits": (AnswerForm("json_schema", False), "nsatisfiable"),
    "a wrong type of keyword": (AnswerForm("json_schema", {"minLength": "3"}), "3"),
    "not JSON": (AnswerForm("json_schema", "{type: object}"), "not JSON"),
    "a reference to itself": (AnswerForm("json_schema", {"$ref": "#"}), "no text fits it"),
    "a reference to nothing": (AnswerForm("json_schema", {"$ref": "#/$defs/none"}), "none"),
    "a reference to elsewhere": (AnswerForm("json_schema", {"$ref": "http://127.0.0.1/schema"}), "127.0.0.1"),
    "a backreference": (AnswerForm("regex", r"(a)\1"), "backreferences"),
    "a look around": (AnswerForm("regex", r"(?=a)b"), "look-ahead"),
    "an open parenthesis": (AnswerForm("regex", r"(a"), "unclosed group"),
    "a rule that is not there": (AnswerForm("grammar", "start: a"), '"a"'),
    "neither Lark nor GBNF": (AnswerForm("grammar", "hello!"), "neither Lark"),
}


DEMO = Path(__file__).resolve().parents[3] / "demo_model" / "weights"


def checked(model: Path, test: Test, vocabulary: int = 443) -> None:

    async def run() -> None:
        checks = GrammarChecks(model, vocabulary)
        try:
            await test(checks)
        finally:
            await checks.close()

    asyncio.run(run())


async def at_once(work: Callable[[], str], size: int, param: str, share: TenantShare) -> str:
    return work()


async def admitted(form: AnswerForm, checks: GrammarChecks) -> str:
    return await checks.checked(await grammar_of(form, checks, at_once), form.param)


async def refusal(checks: GrammarChecks, form: AnswerForm) -> APIError:
    with pytest.raises(APIError) as found:
        await admitted(form, checks)
    return found.value


def test_what_cannot_be_kept_to_is_refused_with_the_reason(model: Path) -> None:
    async def test(checks: GrammarChecks) -> None:
        for name, (form, words) in WRONG.items():
            error = await refusal(checks, form)
            assert (error.status, error.param, error.code) == (400, "response_format", "invalid_grammar"), name
            assert words in error.message and len(error.message) < 400, name

    checked(model, test)


def test_bombs_are_refused_and_the_next_grammar_is_not() -> None:
    """Each takes less of a processor than the limit; how long that is on a busy machine is measured elsewhere."""

    async def test(checks: GrammarChecks) -> None:
        spent = os.times()
        for name, form in BOMBS.items():
            error = await refusal(checks, form)
            assert (error.status, error.param) == (400, "response_format"), name
            assert error.code in ("grammar_too_complex", "invalid_grammar"), name
            assert await admitted(AnswerForm("json_object"), checks)
        assert os.times().user - spent.user < 1.5, "of this process, whose event loop is everybody's"

    checked(DEMO, test, 2048)


def test_forms_become_grammars_of_what_they_say(model: Path) -> None:
    async def test(checks: GrammarChecks) -> None:
        gbnf = 'root ::= greeting " " name\ngreeting ::= "hi" | "hello"\nname ::= [a-z]+'
        assert "start:" in await admitted(AnswerForm("grammar", gbnf, "guided_grammar"), checks)
        lark = 'start: "a"+'
        assert await admitted(AnswerForm("grammar", lark), checks) == lark
        assert json.loads((await admitted(AnswerForm("json_schema", '{"type":"null"}'), checks)).partition("%json")[2])
        assert "[ab]" in await admitted(AnswerForm("regex", "[ab]"), checks)
        assert '"x"' in await admitted(AnswerForm("choice", ["x", "y"]), checks)

    checked(model, test)


def test_a_tenant_that_has_many_grammars_checked_delays_no_other(model: Path) -> None:
    async def test(checks: GrammarChecks) -> None:
        await checks.checked('start: "warm"', "grammar")
        costly = [f'start: "{number}" /(a?){{{200 + number}}}a{{200}}/' for number in range(60)]
        flood = [asyncio.create_task(checks.checked(text, "grammar", share=TenantShare("many"))) for text in costly]
        for each in 'start: "a"', 'start: "b"':
            await checks.checked(each, "grammar", share=TenantShare("few"))
        assert sum(not task.done() for task in flood) > 30, "they stand behind, and not before"
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)

    checked(model, test)


def test_equal_grammars_are_checked_once(model: Path) -> None:
    async def test(checks: GrammarChecks) -> None:
        form = BOMBS["many patterns"]
        errors = await asyncio.gather(*[refusal(checks, form) for _ in range(20)])
        assert {error.code for error in errors} == {"grammar_too_complex"}
        began = time.monotonic()
        await refusal(checks, form)
        assert time.monotonic() - began < checks_module.CHECK_TIMEOUT_S, "it is known"
        assert len(checks._known) == 1

    checked(model, test)


def test_a_client_that_leaves_takes_no_process_with_it(model: Path) -> None:
    async def test(checks: GrammarChecks) -> None:
        await admitted(AnswerForm("json_object"), checks)
        (process,) = [each._process for each in checks._checkers if each._process is not None]
        asking = asyncio.ensure_future(refusal(checks, BOMBS["many patterns"]))
        await asyncio.sleep(0)
        asking.cancel()
        assert await admitted(AnswerForm("choice", ["a"]), checks)
        assert (await refusal(checks, BOMBS["many patterns"])).code == "grammar_too_complex"
        assert process.returncode is None

    checked(model, test)


def test_a_process_that_dies_is_told_and_replaced(model: Path) -> None:
    async def test(checks: GrammarChecks) -> None:
        await admitted(AnswerForm("json_object"), checks)
        (process,) = [each._process for each in checks._checkers if each._process is not None]
        os.kill(process.pid, signal.SIGSTOP)
        asking = asyncio.ensure_future(refusal(checks, AnswerForm("choice", ["a"])))
        while not checks._under_way:
            await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        error = await asking
        assert (error.status, error.code) == (503, "grammar_checks_busy")
        assert await admitted(AnswerForm("choice", ["a"]), checks)

    checked(model, test)


def pipes() -> set[str]:
    """Pipes and sockets of this process."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add(os.readlink(descriptor))
    return {each for each in found if each.startswith(("pipe:", "socket:"))}


def test_a_closed_check_leaves_no_pipe(model: Path) -> None:
    """Even where the process has ended before the event loop sees the ends of its pipes."""

    async def test(checks: GrammarChecks) -> None:
        before = pipes()
        await admitted(AnswerForm("json_object"), checks)
        own = pipes() - before
        assert own
        (checker,) = [each for each in checks._checkers if each._process is not None]
        assert checker._process is not None
        waiting = [thread for thread in threading.enumerate() if "waitpid" in thread.name]
        checker._process.kill()
        for thread in waiting:
            thread.join()
        while checker._process.returncode is None:  # its pipes are then closed a turn of the event loop later
            await asyncio.sleep(0)
        await checker.close()
        async with asyncio.timeout(DEADLINE_S):
            while own & pipes():
                await asyncio.sleep(0)

    checked(model, test)


def test_a_grammar_that_nobody_can_check_now_is_not_blamed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a processor to spare says so, and asks again later; and too many at a time are turned away."""
    monkeypatch.setattr(checks_module, "CHECK_TIMEOUT_S", 0.0)

    async def slow(checks: GrammarChecks) -> None:
        assert (await refusal(checks, AnswerForm("json_object"))).status == 503

    checked(model, slow)
    monkeypatch.setattr(checks_module, "CHECK_TIMEOUT_S", 60.0)
    monkeypatch.setattr(checks_module, "MAX_WAITING_GRAMMARS", 2)

    async def many(checks: GrammarChecks) -> None:
        asked = [admitted(AnswerForm("choice", [f"{i}"]), checks) for i in range(4)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(each, APIError) and each.status for each in found] == [False, False, 503, 503]

    checked(model, many)
