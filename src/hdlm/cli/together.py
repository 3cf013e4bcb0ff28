"""Commands that several processes run together (torchrun), and what they agree on before they begin."""

import argparse
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hdlm.processes import World


def check_alone(args: argparse.Namespace) -> None:
    """Refuse several processes of a command that does not divide its work."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count.isdecimal() and int(count) > 1 and not getattr(args, "together", False):
        raise ValueError(f"hdlm {args.command} is not accepted with {count} processes: start it without torchrun")


@contextmanager
def writers(args: argparse.Namespace) -> Iterator["World"]:
    """The processes that write texts together, by one seed, each with its share of every batch."""
    from hdlm.config.sampling import DrawSettings
    from hdlm.processes import joined

    with joined(args.device) as world:
        if world.size > 1:
            for name in ("watch", "replay"):
                if getattr(args, name) not in (None, False):
                    raise ValueError(f"--{name} is not accepted with {world.size} processes: each sees its own share")
            args.seed = world.from_main(secrets.randbits(32) if args.seed is None else args.seed)
            args.batch_size = DrawSettings().batch_size * world.size
        yield world
