"""Loss curves of several runs, side by side: the same to the last bit, or where they part. And what the runs left behind."""

from dataclasses import dataclass

# What a process may leave behind.
KINDS = {"fds": "file descriptors", "threads": "threads", "qps": "queue pairs"}


@dataclass(frozen=True)
class Verdict:
    is_good: bool
    text: str


def last_loss(result: dict) -> float:
    return float.fromhex(result["losses"][0][-1])


def judge(names: list[str], results: list[dict]) -> Verdict:
    """The first run and the last are of the same network, the second is Ferrite's."""
    wrong = []
    for name, result in zip(names, results):
        wrong += within(name, result)
    control = difference(results[0], results[-1])
    if control:
        wrong.append(f"the training does not repeat itself over the same network: {names[0]} and {names[-1]}: {control}")
    else:
        for name, result in zip(names[1:-1], results[1:-1]):
            parted = difference(results[0], result)
            if parted:
                wrong.append(f"{name} differs from {names[0]}: {parted}")
    wrong += leaks(names[1], results[1], results[0])
    if wrong:
        return Verdict(False, "; ".join(wrong))
    steps = len(results[0]["losses"][0])
    return Verdict(True, f"the same to the last bit over {', '.join(dict.fromkeys(names[:-1]))}: {steps} losses of each rank, and all "
                         f"parameters; {names[1]} leaks nothing")


def within(name: str, result: dict) -> list[str]:
    """What has to hold within a run: it learns, and all ranks have the same parameters."""
    wrong = []
    first = float.fromhex(result["losses"][0][0])
    if not last_loss(result) < first:  # also if it is no number
        wrong.append(f"{name} learns nothing: its loss goes from {first:.4f} to {last_loss(result):.4f}")
    if len(set(result["digests"])) != 1:
        wrong.append(f"{name}: the parameters of its ranks differ")
    return wrong


def difference(one: dict, other: dict) -> str:
    """The first place where two runs differ, or nothing."""
    for rank, (left, right) in enumerate(zip(one["losses"], other["losses"])):
        for step, (a, b) in enumerate(zip(left, right)):
            if a != b:
                return f"the loss of rank {rank} at step {step}, {float.fromhex(a):.9g} and {float.fromhex(b):.9g}"
    if one["digests"] != other["digests"]:
        return "the parameters at the end"
    return ""


def growth(result: dict, kind: str) -> int:
    """How much more of it the worst rank holds after its last process group than after its first; all queue pairs are to go."""
    if kind == "qps":
        return max(held[-1][kind] for held in result["held"])
    return max(held[-1][kind] - held[0][kind] for held in result["held"])


def leaks(name: str, result: dict, stock: dict) -> list[str]:
    """What `result` leaves behind beyond what `stock` does as well."""
    found = []
    for kind, words in KINDS.items():
        if kind not in result["held"][0][0]:
            continue
        mine, theirs = growth(result, kind), growth(stock, kind)
        if mine > max(0, theirs):
            found.append(f"{name} leaks {mine} {words} over {len(result['held'][0])} process groups, the built-in {theirs}")
    return found
