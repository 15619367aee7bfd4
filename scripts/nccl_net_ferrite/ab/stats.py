"""Whether a difference is more than chance: the sides of all runs are dealt out anew in every way, for all rows at once.

A block is four runs, two of each side (see plan.order). If the sides were the same, each block's four times could as well have
been dealt to A and B in any other of the six ways. The statistic of a row is its mean log ratio over that mean's standard error;
the bar that it has to be above is what the *largest* statistic of all rows stays below in 95 % of all ways to deal
(Westfall and Young's max-T). So a report in which nothing differs claims something in at most 5 % of cases, whatever the noise of
each row looks like, and however rows of one run depend on each other.
"""

import math
from dataclasses import dataclass
from itertools import combinations, product
from random import Random
from statistics import median

# Runs of a block, and the ways to choose two of them as B's; the last three are the first three with the sides changed over.
BLOCK = 4
DEALS: list[tuple[int, ...]] = list(combinations(range(BLOCK), 2))
# How often a report in which nothing differs may claim something.
SIGNIFICANCE = 0.05
# A ratio nearer to 1 than this is no difference that anybody would feel.
LEAST_EFFECT = 0.03
# Of more ways than this so many are drawn.
MOST_WAYS = 5000
# Times further off than so many standard deviations, as the median tells them, are cut to that: one bad run does not drown a quiet row.
FAR = 3 * 1.4826
# No clock is better than this; keeps times that are all the same from dividing by nothing.
CLOCK = 1e-6
# No interval reaches further than this in logarithms: nobody reads beyond.
FURTHEST = 7.0
# Standard deviations by which an expected value is to be above a bar that it clears four times out of five.
FOUR_OF_FIVE = 1.2

BETTER, WORSE, ALIKE, TOO_FEW_RUNS = "better", "worse", "alike", "too few runs to tell"


@dataclass(frozen=True)
class Row:
    a: float  # median time of A, in microseconds
    b: float
    ratio: float  # time of B over time of A: below 1, B is faster
    low: float | None  # the interval of `ratio`: in 95 % of reports all intervals hold their true ratios; None: no bound
    high: float | None
    finds: float | None  # the smallest ratio above 1 that four of five comparisons like this one would find; None: none
    noise: float  # standard deviation of one run, as a part of its time
    a_to_a: float  # A's later run of each block over its earlier one
    verdict: str


@dataclass(frozen=True)
class Fit:
    """One row's times, taken apart."""

    deals: list[list[float]]  # for each block and deal: how much B's log times are above A's, summed
    total: float  # sum of squares within blocks
    effect: float  # mean log ratio
    error: float  # its standard error


def judge(times: list[list[float]], order: str, effect: float) -> list[Row]:
    """`times`: for each row the time of each run, in microseconds; `order`: the side of each run; `effect`: a ratio of 1 + `effect`
    matters, so a row is alike only if its interval stays below that."""
    dealt = [DEALS.index(tuple(place for place in range(BLOCK) if order[begin + place] == "B")) for begin in range(0, len(order), BLOCK)]
    fits = [fit(row, dealt) for row in times]
    bar = threshold(fits, dealt)
    return [row_of(row, order, one, bar, effect) for row, one in zip(times, fits)]


def geometric_mean(rows: list[list[float]]) -> list[float]:
    """Of many rows' times, one row: the geometric mean of each run."""
    return [math.exp(sum(map(math.log, run)) / len(run)) for run in zip(*rows)]


def fit(times: list[float], dealt: list[int]) -> Fit:
    rest = residuals([math.log(time) for time in times])
    total = sum(value * value for value in rest) + len(rest) * CLOCK**2
    blocks = [rest[begin : begin + BLOCK] for begin in range(0, len(rest), BLOCK)]
    # The residuals of a block sum to nothing: B's above A's is twice B's.
    deals = [[2 * (block[i] + block[j]) for i, j in DEALS] for block in blocks]
    seen = sum(deal[way] for deal, way in zip(deals, dealt))
    left = total - seen * seen / len(rest)
    return Fit(deals, total, 2 * seen / len(rest), 2 * math.sqrt(left / degrees_of_freedom(len(blocks)) / len(rest)))


def degrees_of_freedom(blocks: int) -> int:
    """Of the runs, one is spent on each block's level and one on the difference of the sides."""
    return (BLOCK - 1) * blocks - 1


def residuals(logs: list[float]) -> list[float]:
    """Log times less the level of their block, outliers cut. It knows nothing of sides, so that any deal is treated alike."""
    rest = []
    for begin in range(0, len(logs), BLOCK):
        block = logs[begin : begin + BLOCK]
        rest += [value - median(block) for value in block]
    limit = FAR * median(map(abs, rest)) or math.inf
    rest = [max(-limit, min(limit, value)) for value in rest]
    means = [sum(rest[begin : begin + BLOCK]) / BLOCK for begin in range(0, len(rest), BLOCK)]
    return [value - means[place // BLOCK] for place, value in enumerate(rest)]


def ways(dealt: list[int]) -> list[tuple[int, ...]]:
    """All ways to deal, each without the one that only changes the sides over; of too many some, with the one that was run."""
    half = len(DEALS) // 2
    if half * len(DEALS) ** (len(dealt) - 1) <= MOST_WAYS:
        return list(product(range(half), *[range(len(DEALS))] * (len(dealt) - 1)))
    dice = Random(1)
    drawn = [tuple(dice.randrange(len(DEALS)) for _ in dealt) for _ in range(MOST_WAYS - 1)]
    return [tuple(dealt), *drawn]


def threshold(fits: list[Fit], dealt: list[int]) -> float:
    """What a row's statistic has to be above; infinite if there are too few ways to deal for any claim."""
    tried = list(zip(*ways(dealt)))
    allowed = int(SIGNIFICANCE * len(tried[0]))
    if allowed == 0:
        return math.inf
    largest = [0.0] * len(tried[0])
    for one in fits:
        scale = 1 / math.sqrt(one.total * BLOCK * len(dealt))
        columns = [map([part * scale for part in deal].__getitem__, column) for deal, column in zip(one.deals, tried)]
        largest = list(map(max, largest, map(abs, map(sum, zip(*columns)))))
    part = sorted(largest, reverse=True)[allowed]
    return part * math.sqrt(degrees_of_freedom(len(dealt)) / (1 - part * part))


def row_of(times: list[float], order: str, one: Fit, bar: float, effect: float) -> Row:
    a, b = ([time for time, side in zip(times, order) if side == letter] for letter in "AB")
    earlier, later = a[0::2], a[1::2]
    a_to_a = math.exp(sum(math.log(y / x) for x, y in zip(earlier, later)) / len(later))
    noise = one.error * math.sqrt(len(times) / BLOCK)
    reach = bar * one.error
    known = math.isfinite(reach)
    reach = min(reach, FURTHEST)
    low, high = (math.exp(one.effect - reach), math.exp(one.effect + reach)) if known else (None, None)
    finds = max(1 + LEAST_EFFECT, math.exp(min(FURTHEST, one.error * needed(bar, len(times) // BLOCK)))) if known else None
    return Row(
        median(a),
        median(b),
        math.exp(one.effect),
        low,
        high,
        finds,
        noise,
        a_to_a,
        verdict(math.exp(one.effect), low, high, effect),
    )


def needed(bar: float, blocks: int) -> float:
    """The true effect, in standard errors, whose statistic is above `bar` in four of five comparisons: both the mean and its
    standard error, which is an estimate too, differ from one to the next."""
    return bar + FOUR_OF_FIVE * math.sqrt(1 + bar * bar / (2 * degrees_of_freedom(blocks)))


def verdict(ratio: float, low: float | None, high: float | None, effect: float) -> str:
    if low is None or high is None:
        return TOO_FEW_RUNS
    if low > 1 and ratio >= 1 + LEAST_EFFECT:
        return WORSE
    if high < 1 and ratio <= 1 / (1 + LEAST_EFFECT):
        return BETTER
    return ALIKE if 1 / (1 + effect) <= low and high <= 1 + effect else TOO_FEW_RUNS
