"""``python tools/check_stack.py``: the template and the machines by the linters of SAM, CloudFormation and ASL.

None of them sees what the others see: SAM's and cfn-lint look at the template and not into a DefinitionUri,
asl-validator (npm, from tools/package-lock.json) knows the grammar of the definitions.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.definitions import REGION, ROOT, state_machines


def main() -> int:
    """Run all of them, also when one fails; 0 if none has anything to say."""
    bin_ = Path(sys.executable).parent
    validator = ROOT / "tools" / "node_modules" / ".bin" / "asl-validator"
    if not validator.exists() or shutil.which("node") is None:
        print("asl-validator is not installed: install Node.js and run `npm ci --prefix tools`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        asl = [str(validator)]
        for machine in state_machines():
            path = Path(directory) / f"{machine.name}.json"
            path.write_text(json.dumps(machine.definition))
            asl += ["--json-path", str(path)]
        commands = (
            [str(bin_ / "sam"), "validate", "--lint", "--region", REGION],
            [str(bin_ / "cfn-lint"), "--regions", REGION, "--", "template.yaml"],
            asl,
        )
        running = [(command, subprocess.Popen(command, cwd=ROOT)) for command in commands]
        failed = [Path(command[0]).name for command, process in running if process.wait() != 0]
    if failed:
        print(f"not accepted by {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
