#!/bin/sh
# Makes .venv with Python 3.13 and everything that requirements-dev.txt pins by hash. Safe to run again.
set -eu
cd "$(dirname "$0")/.."

stamp=.venv/.complete
want=$(cat requirements-dev.txt pyproject.toml tools/uv.txt tools/package-lock.json | cksum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi

is_313() {
    [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = 3.13 ]
}

find_python() {
    # pyenv's shim answers to python3.13 even where 3.13 is not chosen, so each candidate is asked for its version.
    for candidate in python3.13 python3 python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13*/bin/python; do
        if is_313 "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    if command -v uv >/dev/null 2>&1; then
        uv python find 3.13 2>/dev/null || { uv python install 3.13 >&2 && uv python find 3.13; }
        return
    fi
    echo "carillon: Python 3.13 is needed and was not found on PATH, among pyenv's versions, or by uv." >&2
    echo "Install it (for example: pyenv install 3.13, or uv python install 3.13) and run this again." >&2
    return 1
}

if ! { [ -x .venv/bin/python ] && is_313 .venv/bin/python; }; then
    python=$(find_python)
    echo "carillon: making .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
fi

echo "carillon: installing packages (pinned by hash)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tools/uv.txt
.venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes requirements-dev.txt
# The command `carillon`, from this tree.
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .

# asl-validator, AWS's own grammar of the Amazon States Language as JSON schemas, exists for Node alone.
if ! command -v npm >/dev/null 2>&1; then
    echo "carillon: npm is not installed; the state machines' grammar check will say so" >&2
else
    npm ci --silent --no-audit --no-fund --prefix tools
fi

echo "$want" > "$stamp"
