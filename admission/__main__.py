"""`python -m admission`: the gateway's command line.

One flag and one RHODECK_GATEWAY_* variable for every field of `Settings`, so neither can be forgotten.
Prevents: a secret in the list of processes, and a half-started gateway after bad input.
"""

from __future__ import annotations

import gc
import resource
import signal
import sys
from typing import NoReturn

import click
import uvloop

from admission.doors import inherited_doors, own_doors
from admission.processes import supervise
from admission.rehearsal import is_rehearsal, rehearse
from admission.runtime import run
from admission.settings import ENV_PREFIX, SECRETS, Settings, load
from fleet import logs
from fleet.clock import SystemClock
from fleet.errors import FleetError

_GARBAGE_OBJECTS = 10_000


def _options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--" + name.replace("_", "-"), name],
            help=field.description,
            metavar="PATH" if name.endswith(("_dir", "_file")) else "VALUE",
            show_default=None if field.is_required() or field.default is None else str(field.default),
            envvar=ENV_PREFIX + name.upper(),
            show_envvar=True,
        )
        for name, field in Settings.model_fields.items()
        if name not in SECRETS
    ]


def _start(**given: str | None) -> None:
    try:
        settings = load({name: value for name, value in given.items() if value is not None})
        if is_rehearsal():
            rehearse(settings, SystemClock())
            return
        if settings.processes > 1:
            supervise(settings, SystemClock(), sys.argv[1:])
            return
        doors = inherited_doors() or own_doors(settings)
        if doors.line is not None:  # a reload is the supervisor's; a hangup reaches all of a terminal
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
    except FleetError as exc:
        _refuse(exc)
    logs.configure(settings.name, level=settings.log_level)
    allow_descriptors()
    look_less_for_garbage()
    try:
        uvloop.run(run(settings, SystemClock(), doors))
    except FleetError as exc:
        _refuse(exc)
    finally:
        doors.close()


def allow_descriptors() -> None:
    """Raise the limit of open files to what the system allows.

    At the usual 1,024 a gateway with a thousand clients could not connect to nodes, and would blame them.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def look_less_for_garbage() -> None:
    """Have cycles looked for after 10,000 more objects instead of 700, and not among what is there now.

    Requests leave no cycles; a few dozen that run at once have more than 700 objects, so that each lot of
    answers set off a search, a twentieth of all work.
    """
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS, 20, 20)


def _refuse(exc: FleetError) -> NoReturn:
    """Say what is wrong and what to do, and end with a code that is not 0."""
    where = f"{exc.field}: " if exc.field else ""
    click.echo(f"Error: {where}{exc.message}" + (f"\n{exc.hint}" if exc.hint else ""), err=True)
    sys.exit(2)


main = click.Command(
    "admission",
    params=_options(),
    callback=_start,
    help="Run a gateway: admit, route and count OpenAI-style requests in front of vLLM nodes.",
)

if __name__ == "__main__":
    main(prog_name="rhodeck gateway")
