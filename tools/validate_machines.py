"""``python -m tools.validate_machines``: AWS's rules for definitions, by npm's asl-validator (``npm ci`` in tools/)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.definitions import ROOT, state_machines


def main() -> int:
    """Validate every machine of the template, substitutions made; the validator's exit status."""
    with tempfile.TemporaryDirectory() as directory:
        command = ["node", str(ROOT / "tools" / "node_modules" / ".bin" / "asl-validator")]
        for machine in state_machines():
            path = Path(directory) / f"{machine.name}.json"
            path.write_text(json.dumps(machine.definition))
            command += ["--json-path", str(path)]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
