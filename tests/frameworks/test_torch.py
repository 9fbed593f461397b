"""torch.distributed by itself: the variables that most frameworks stand on."""

from __future__ import annotations

from tests.frameworks.places import Place


def test_torch(place: Place) -> None:
    done = place.ranks("torch_sum.py")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["rank 0 of 2 sum 3", "rank 1 of 2 sum 3"]), done.stderr
    alone = place.ranks("torch_sum.py", without=("RANK",))
    assert alone.returncode != 0
    assert "environment variable RANK expected" in alone.stderr
