"""What was found: a table, and all numbers."""

import json
from pathlib import Path

from abtest.plan import text_of

from .plan import Case
from .runs import Outcome


def line(version: str, case: Case, wrong: list[str], told: list[str]) -> str:
    verdict = "wrong: " + "; ".join(wrong) if wrong else "right"
    return f"| {version} | {case.ranks} | {case.gdr} | {case.title()} | {verdict} | {'; '.join(told).replace('|', '/')} |"


def summary(rows: list[dict], wrong: list[str]) -> str:
    bad = sum(bool(row["wrong"]) for row in rows)
    results = sum(row["results"] for row in rows)
    more = f"; {'; '.join(wrong)}" if wrong else ""
    return f"{len(rows) - bad} of {len(rows)} cases right, {results} results compared{more}"


def row_of(version: str, case: Case, outcome: Outcome | None, wrong: list[str], told: list[str]) -> dict:
    results = outcome.results if outcome else {}
    slowest = [max(one["s"] for one in rows) for rows in zip(*(r["rows"] for r in results.values())) if "s" in rows[0]]
    return {
        "nccl": version, "case": vars(case), "wrong": wrong, "told": told, "line": line(version, case, wrong, told),
        "results": sum(len(result["rows"]) for result in results.values()),
        "operations": [{**{k: v for k, v in row.items() if k != "s"}, "s": s}
                       for row, s in zip(next(iter(results.values()), {"rows": []})["rows"], slowest)],
    }


def write(folder: Path, about: dict, rows: list[dict], wrong: list[str]) -> None:
    (folder / "raw.json").write_text(json.dumps({"about": about, "wrong": wrong, "rows": rows}, indent=1))
    sizes = ", ".join(map(text_of, about["sizes"]))
    (folder / "report.md").write_text("\n\n".join([
        f"# {about['network']} under NCCL",
        summary(rows, wrong) + ".",
        "\n".join(["| NCCL | ranks | GPUDirect | case | results | what was seen |", "|---|---:|---|---|---|---|",
                   *(row["line"] for row in rows)]),
        "Each case is a run of fresh processes, each rank a machine of its own to NCCL. A result is one operation at one size on one "
        "rank, every element of it compared; operations that have a form in place are done in place too. \"LL Tree\" and the like are "
        "NCCL_PROTO and NCCL_ALGO; trees are for all_reduce alone, and sends and receives have no algorithm. Calls are those of all ranks, counted by "
        "a layer between NCCL and the plugin that is there in these cases only.",
        "\n".join([
            f"- command: `{about['command']}`",
            f"- sizes in bytes: {sizes}; cases that are not about collectives have fewer",
            f"- GPUs: {', '.join(about['gpus'])}",
            *(f"- NCCL {one['version']}: sha256 `{one['sha256']}`" for one in about["nccl"]),
            *([f"- plugin: sha256 `{about['plugin']}`"] if about["plugin"] else []),
            *(["- on the software device"] if about["softrnic"] else []),
        ])]) + "\n")
