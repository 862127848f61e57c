"""``make demo``: the main job on real data, told as a short story with a table of what was proven."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import FrameType
from typing import NoReturn

from demo.acts import play
from demo.processes import Children, DemoError
from demo.report import Report
from demo.stage import Stage
from demo.store import Place

OUTPUT = Path("build") / "demo"
WHOLE = "this takes about four minutes on two cores, most of it in Spark; without Spark (FAST=1) about one"
FAST = "this takes about one minute on two cores; Spark is left out (FAST=1)"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--remote", help="s3://bucket/prefix or file:///dir; default: a local directory")
    parser.add_argument("--endpoint-url", help="for MinIO, moto and other S3 servers")
    parser.add_argument("--fast", action="store_true", help="leave Spark out")
    parser.add_argument("--keep", action="store_true", help="leave the objects in the store")
    return parser.parse_args()


def _interrupted(signum: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(f"signal {signum}")


def main() -> int:
    """Plays the demo; 0 if every claim held, 1 if one did not, 130 if interrupted."""
    args = _arguments()
    signal.signal(signal.SIGTERM, _interrupted)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="work-", dir=OUTPUT)).resolve()
    remote = args.remote or f"file://{OUTPUT.resolve() / 'store' if args.keep else scratch / 'store'}"
    place = Place(f"{remote.rstrip('/')}/demo-{uuid.uuid4().hex[:12]}", args.endpoint_url)
    children = Children(scratch)
    report = Report(place.url)
    report.tell(FAST if args.fast else WHOLE)
    started = time.perf_counter()
    status = 1
    try:
        play(Stage(scratch, place, children, report, OUTPUT, fast=args.fast))
        status = 0 if report.all_proven else 1
    except KeyboardInterrupt:
        report.fail("interrupted")
        status = 130
    except DemoError as error:
        report.fail(str(error))
    finally:
        children.close()
        if not args.keep:
            place.remove()
        shutil.rmtree(scratch, ignore_errors=True)
    report.finish(OUTPUT, time.perf_counter() - started, kept=place.url if args.keep else None)
    return status


if __name__ == "__main__":
    sys.exit(main())
