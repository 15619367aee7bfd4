"""The report of the trainings: a table, and all numbers."""

from pathlib import Path

from ..files import write_json
from .results import KINDS, About, Report, Run

HOW = (
    "A transformer of 3 million parameters learns the source text of Python's standard library, byte by byte, with "
    "{parallel}, AdamW and deterministic algorithms. Losses are compared as the 32-bit numbers that they are, of "
    "every rank at every step. The last columns are what rank 0 held after each of its process groups was destroyed."
)


def write(folder: Path, report: Report) -> None:
    write_json(folder / "raw.json", report.to_json())
    verdict = report.verdict.text
    parts = [
        "# The same training over three networks",
        verdict[:1].upper() + verdict[1:] + ".",
        table(report.runs),
        HOW.format(parallel="FSDP (fully_shard)" if report.about.sharded else "DistributedDataParallel"),
        facts(report.about, report.runs[1]),
    ]
    (folder / "report.md").write_text("\n\n".join(parts) + "\n")


def table(runs: list[Run]) -> str:
    lines = [
        "| run | network | GPUDirect | first loss | last loss | parameters (sha256) | " + " | ".join(KINDS.values()) + " |",
        "|---|---|---|---:|---:|---|" + "---|" * len(KINDS),
    ]
    for run in runs:
        held = [", ".join(map(str, run.counts(kind))) or "not counted" for kind in KINDS]
        lines.append(
            f"| {run.name} | {run.network} | {run.gdr} | {run.first_loss():.9g} | {run.last_loss():.9g} "
            f"| `{run.digests[0][:16]}` | {' | '.join(held)} |"
        )
    return "\n".join(lines)


def facts(about: About, ferrite: Run) -> str:
    # Paths of the machine are left out.
    variables = " ".join(f"`{name}={value}`" for name, value in sorted(about.variables.items()) if not value.startswith("/"))
    grown = "; ".join(f"{words} {ferrite.growth(kind):+d}" for kind, words in KINDS.items() if ferrite.counts(kind))
    lines = [
        f"- command: `{about.command}`",
        f"- versions: {', '.join(f'{name} {version}' for name, version in about.versions.items())}",
        f"- ranks: {'; '.join(about.gpus)}",
        f"- plugin: {about.plugin.text()}",
        f"- variables: {variables}",
        f"- Ferrite, worst rank, from the first to the last of {about.cycles} process groups: {grown}",
    ]
    if about.softrnic:
        lines.append("- on the software device, both ends on one machine")
    return "\n".join(lines)

