"""Compare what every kind of buffer returns here with what it returned at another revision, bit for bit.

    python .ci/golden_answers.py HEAD~3

Both revisions run in this call, on this machine, with this numpy: returns of `pow` and `log` differ between machines.
Each kind of the zoo is used and drawn from in turns, 200 batches, from seeds. Where the draws of a seed are meant to
change, so do the returns; where code only moves, they must not.
"""

import hashlib
import importlib.util
import json
import pathlib
import random
import subprocess
import sys
import tempfile

NUM_BATCHES = 200
ROOT = pathlib.Path(__file__).parents[1]


def answers() -> dict[str, list[str]]:
    """Return digests of what each kind returns from one batch to the next, with the package that is on the path."""
    spec = importlib.util.spec_from_file_location("zoo", ROOT / "src/relive/testing/zoo.py")
    assert spec is not None
    assert spec.loader is not None
    zoo = importlib.util.module_from_spec(spec)
    sys.modules["zoo"] = zoo
    spec.loader.exec_module(zoo)
    digests: dict[str, list[str]] = {}
    for name, kind in zoo.KINDS.items():
        buffer, rng, digests[name] = kind.make(), random.Random(7), []
        for _ in range(NUM_BATCHES):
            returned = [zoo.work(buffer, rng, 5), zoo.drawn(buffer)]
            digests[name].append(hashlib.sha256(repr(returned).encode("utf-8", "surrogatepass")).hexdigest()[:16])
    return digests


def compare(revision: str) -> int:
    """Return 1 if any kind returns something else here than at `revision`, and print which."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        there, here = (
            json.loads(
                subprocess.run(
                    [sys.executable, "-W", "ignore", __file__, "--answers", str(source / "src")],
                    check=True,
                    capture_output=True,
                ).stdout
            )
            for source in (pathlib.Path(folder), ROOT)
        )
    differs = 0
    for name, digests in here.items():
        unequal = [number for number, (a, b) in enumerate(zip(there[name], digests, strict=True)) if a != b]
        differs += bool(unequal)
        print(f"{name:36} {len(digests)} batches", f"differ from batch {unequal[0]} on" if unequal else "equal")
    return 1 if differs else 0


def main() -> int:
    if sys.argv[1] != "--answers":
        return compare(sys.argv[1])
    sys.path.insert(0, sys.argv[2])
    print(json.dumps(answers()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
