"""Whether a difference is one: an exact permutation test, an effect that matters, and the noise of A against itself."""

from dataclasses import dataclass
from itertools import combinations
from math import comb
from random import Random
from statistics import median

# A ratio nearer to 1 than this is no difference that anybody would feel.
LEAST_EFFECT = 0.03
# Part of the rows called different that may be so by chance.
SIGNIFICANCE = 0.05
MOST_SPLITS = 20_000


@dataclass(frozen=True)
class Row:
    a: float  # median time of A, in microseconds
    b: float
    ratio: float  # time of B over time of A: below 1, B is faster
    low: float  # least and greatest ratio of a run of B to A's median
    high: float
    noise: float  # |ratio - 1| of A's odd runs to A's even runs
    p: float  # chance that a difference as large comes from noise alone


def row(a: list[float], b: list[float]) -> Row:
    """`a`, `b`: one time per run of each side, in the order of the runs."""
    middle = median(a)
    noise = abs(median(a[1::2]) / median(a[0::2]) - 1) if len(a) > 1 else 1.0
    ratios = [time / middle for time in b]
    return Row(middle, median(b), median(b) / middle, min(ratios), max(ratios), noise, permutation(a, b))


def permutation(a: list[float], b: list[float]) -> float:
    """The part of all ways to deal the times to two sides that puts the means as far apart as they are."""
    both = a + b
    total = sum(both)

    def gap(part) -> float:
        sum_a = sum(part)
        return abs(sum_a / len(a) - (total - sum_a) / len(b))

    seen = gap(a) - 1e-12 * total
    if comb(len(both), len(a)) <= MOST_SPLITS:
        splits = [gap(part) for part in combinations(both, len(a))]
    else:
        dice = Random(1)
        splits = [gap(dice.sample(both, len(a))) for _ in range(MOST_SPLITS)]
    return sum(one >= seen for one in splits) / len(splits)


def verdicts(rows: list[Row]) -> list[str]:
    """"better", "worse" or "no difference" for each row.

    Many rows are many chances to be fooled: Benjamini and Hochberg's rule keeps the false ones among those called different
    below `SIGNIFICANCE`. Of these, only what is above the noise and matters is called so.
    """
    ranked = sorted(row.p for row in rows)
    passed = [p for place, p in enumerate(ranked, 1) if p <= SIGNIFICANCE * place / len(rows)]
    bar = max(passed, default=-1.0)
    said = []
    for row in rows:
        is_different = row.p <= bar and abs(row.ratio - 1) > max(LEAST_EFFECT, row.noise)
        said.append(("better" if row.ratio < 1 else "worse") if is_different else "no difference")
    return said
