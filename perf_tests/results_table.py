#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the README's tables of results out of what chunked_prefill_perf measured.

usage: results_table.py [--policy NAME] RESULTS.json [REFERENCE.json]

RESULTS.json    chunked_prefill_perf --benchmark_out=RESULTS.json --benchmark_out_format=json;
                with --benchmark_repetitions the medians are taken
REFERENCE.json  list of {"name": case, "wall_us": microseconds} of the reference, where measured;
                it splits equally
"""
import argparse
import json
import pathlib
import sys


def read(path):
    return json.loads(pathlib.Path(path).read_text())


def by_name(benchmarks):
    """One measurement a name: the median where the run was repeated, else the only one."""
    rows = {}
    for row in benchmarks:
        if row["run_type"] == "iteration" or row["aggregate_name"] == "median":
            rows[row["run_name"]] = row
    return rows


def micros(row):
    if row is None:
        return None
    return row["real_time"] * {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}[row["time_unit"]]


def over(dividend, divisor):
    return None if dividend is None or divisor is None else dividend / divisor


def text(number):
    """Three significant digits, all of them before the point where there are more."""
    if number is None:
        return ""
    return f"{number:,.{2 if number < 10 else 1 if number < 100 else 0}f}"


def table(results, reference, only):
    rows = by_name(results["benchmarks"])
    empty = micros(rows.get("empty_kernel"))
    in_graph = any(name.startswith("graph/") for name in rows)
    columns = ["case", "loops", "build, us", "empty kernel, us", "ratio"]
    columns += (["in a graph, us", "memset in a graph, us"] if in_graph
                else ["fill, us", "plain fill, us"])
    columns += ["fraction"] + (["reference, us", "reference / build"] if reference else [])
    yield columns
    yield ["---"] + ["---:"] * (len(columns) - 1)

    builds = [name.split("/") for name in rows if name.startswith("build/")]
    builds = [build for build in builds if only in (None, build[2])]
    several = len({policy for _, _, policy in builds}) > 1
    for _, case, policy in builds:
        build = rows[f"build/{case}/{policy}"]
        wall = micros(build)
        ours = rows.get(f"{'graph' if in_graph else 'fill'}/{case}/{policy}")
        plain = rows.get(f"{'memset_graph' if in_graph else 'memset'}/{case}")
        row = [f"{case}, {policy}" if several else case, f"{build['loops']:,.0f}", text(wall),
               text(empty), text(over(wall, empty)), text(micros(ours)),
               text(micros(plain)), text(over(micros(plain), micros(ours)))]
        if reference:
            theirs = reference.get(case) if policy == "equal" else None
            row += [text(theirs), text(over(theirs, wall))]
        yield row


def attention_table(results):
    rows = by_name(results["benchmarks"])
    yield ["step, values", "time, us", "GB/s", "of deep_copy"]
    yield ["---"] + ["---:"] * 3
    for name, row in rows.items():
        step, _, values = name.partition("/")
        if "deep_copy_fraction" in row:
            yield [f"`{step}`, {values.replace('_', ' ')}", text(micros(row)),
                   text(row["bytes_per_second"] * 1e-9), text(row["deep_copy_fraction"])]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", help="rows of this one alone")
    parser.add_argument("results", metavar="RESULTS.json")
    parser.add_argument("reference", metavar="REFERENCE.json", nargs="?")
    arguments = parser.parse_args()
    results = read(arguments.results)
    reference = {row["name"]: row["wall_us"]
                 for row in (read(arguments.reference) if arguments.reference else [])
                 if "wall_us" in row}
    context = results["context"]
    threads = "" if context["backend"] == "Cuda" else f", {context['threads']} threads"
    print(f"{context['device']}, {context['backend']}{threads}, Kokkos {context['kokkos_version']}, "
          f"chunked_prefill {context['version']}, revision {context['revision']}\n")
    tables = [table(results, reference, arguments.policy), attention_table(results)]
    for rows in map(list, tables):
        if len(rows) > 2:
            print("\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n")


if __name__ == "__main__":
    sys.exit(main())
