"""`python -m dashboard`: the page, in this process, until SIGTERM."""

import sys

from core.cli import parse_or_exit
from core.config import DashboardConfig
from core.errors import ConfigError
from core.listening import listen, url_of
from core.status import StatusFile
from core.store import connect_blocking
from dashboard.server import serve


def main() -> int:
    """The exit status: 0 after a signal, 2 for a setting that cannot work."""
    config = parse_or_exit(DashboardConfig, "dashboard")
    status = StatusFile(config.status_file)
    try:
        connect_blocking(config.redis).close()  # says now that a URL is of another kind; a server that is away may come
        listener = listen(config.host, config.port)
    except ConfigError as error:
        status.failed(str(error))
        print(f"error: {error}", file=sys.stderr)
        return 2
    with listener:
        address = url_of(listener)
        serve(listener, lambda: status.ready(address))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
