"""The report of all cases: a table, and all numbers."""

from pathlib import Path

from ..files import write_json
from ..sizes import text_of
from .results import About, Report

HOW = (
    "Each case is a run of fresh processes, each rank a machine of its own to NCCL. A result is one operation at one size on one "
    'rank, every element of it compared; operations that have a form in place are done in place too. "LL Tree" and the like are '
    "NCCL_PROTO and NCCL_ALGO; trees are for all_reduce alone, and sends and receives have no algorithm. Calls are those of all "
    "ranks, counted by a layer between NCCL and the plugin that is there in these cases only."
)


def write(folder: Path, report: Report) -> None:
    write_json(folder / "raw.json", report.to_json())
    parts = [f"# {report.about.network} under NCCL", summary(report) + ".", table(report), HOW, facts(report.about)]
    (folder / "report.md").write_text("\n\n".join(parts) + "\n")


def summary(report: Report) -> str:
    rows = report.rows
    bad = sum(bool(row.findings.wrong) for row in rows)
    more = f"; {'; '.join(report.wrong)}" if report.wrong else ""
    return f"{len(rows) - bad} of {len(rows)} cases right, {sum(row.results for row in rows)} results compared{more}"


def table(report: Report) -> str:
    head = ["| NCCL | ranks | GPUDirect | case | results | what was seen |", "|---|---:|---|---|---|---|"]
    return "\n".join([*head, *(row.line() for row in report.rows)])


def facts(about: About) -> str:
    lines = [
        f"- command: `{about.command}`",
        f"- sizes in bytes: {', '.join(map(text_of, about.sizes))}; cases that are not about collectives have fewer",
        f"- GPUs: {', '.join(about.gpus)}",
        *(f"- NCCL {one.version}: sha256 `{one.sha256}`" for one in about.nccl),
    ]
    if about.plugin:
        lines.append(f"- plugin: {about.plugin.text()}")
    if about.softrnic:
        lines.append("- on the software device")
    return "\n".join(lines)
