"""Write the traces of three short runs into a file, or compare with those that are in it: `golden_traces.py FILE`.

Run it before and after a change that must not move a bit, on one machine and in one environment. A trace holds the
digests of what a run computed: its metrics (without times and memory), its completions, and its final weights.
"""

import gzip
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPES = {
    "grpo": "src/oncurve/demo/recipe.toml",
    "ppo": "tests/recipes/ppo.toml",
    "process": "tests/recipes/process.toml",
}
STEPS = 4
UNEQUAL = ("time/", "memory/", "tokens/per_second")  # these differ from run to run


def digest(*pieces: bytes) -> str:
    """Return the hash of `pieces` in their order, in hexadecimal."""
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def trace(run: Path) -> dict[str, str]:
    """Return the digests of a run's directory."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    metrics = [{name: value for name, value in line.items() if not name.startswith(UNEQUAL)} for line in lines]
    newest = max((run / "checkpoints").glob("step-*"))
    return {
        "metrics": digest(json.dumps(metrics, sort_keys=True).encode()),
        "completions": digest(*(gzip.decompress(path.read_bytes()) for path in sorted(run.glob("rollouts/*.gz")))),
        "weights": digest(*(path.read_bytes() for path in sorted(newest.glob("*.safetensors")))),
    }


def main(file: Path) -> int:
    """Run the recipes; write their traces into `file`, or return 1 where they are not those that it has."""
    traces = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe in RECIPES.items():
            out = Path(folder) / name
            command = [sys.executable, "-m", "oncurve", "train", str(ROOT / recipe), f"run.steps={STEPS}"]
            subprocess.run([*command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
            traces[name] = trace(out)
    if not file.exists():
        file.write_text(json.dumps(traces, indent=2) + "\n", "utf-8")
        return 0
    before = json.loads(file.read_text("utf-8"))
    differing = [
        f"{name}: other {part}" for name, parts in traces.items() for part in parts if parts[part] != before[name][part]
    ]
    print("\n".join(differing) or f"the traces are those of {file}")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
