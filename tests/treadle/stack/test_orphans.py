"""Orphans of a service that has ended: real processes below a subreaper of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SUPERVISOR = """
import json, os, subprocess, sys, time
from pathlib import Path
from shared.runtime.identity import identify
from shared.runtime.kept_processes import ENGINES, KEEP_VARIABLE, RECORD, boot_id
from treadle.stack.orphans import ORPHAN_GRACE_S, Orphans
from treadle.stack.process import SERVICE_VARIABLE, adopt_orphans

home = Path(sys.argv[1])
adopt_orphans()
service = '''
import os, subprocess
for names in ([], ["KEEP"], ["KEEP"]):
    environ = {**os.environ, **{os.environ["KEEP_NAME"]: "1" for _ in names}}
    print(subprocess.Popen(["sleep", "60"], env=environ, start_new_session=True, stdout=subprocess.DEVNULL).pid)
'''
environ = {**os.environ, SERVICE_VARIABLE: "worker", "KEEP_NAME": KEEP_VARIABLE}
out = subprocess.run([sys.executable, "-c", service], env=environ, stdout=subprocess.PIPE, check=True).stdout
plain, forged, recorded = map(int, out.split())
folder = home / "run" / ENGINES / "node" / "mark"
folder.mkdir(parents=True)
record = {"pid": recorded, "started": identify(recorded).started, "boot": boot_id()}
(folder / RECORD).write_text(json.dumps(record))
orphans = Orphans(home)
orphans.reap({}, {"worker"})
time.sleep(ORPHAN_GRACE_S + 0.1)
orphans.kill_due()
time.sleep(0.2)
after = [identify(pid) is not None for pid in (plain, forged, recorded)]
orphans.kill_all(())
time.sleep(0.2)
print(json.dumps({"after the service": after, "after the stack": identify(recorded) is not None}))
"""


def test_only_a_recorded_process_outlives_its_service(tmp_path: Path) -> None:
    """A program that sets the variable of kept processes is ended like each other orphan."""
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"after the service": [False, False, True], "after the stack": False}
