#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# usage: unit_tests/consumers/run.sh BUILD-DIR [CMAKE-OPTION...]
#
# Uses the project in every way that others do, static and shared: installed and found with
# find_package, as a subdirectory, with the unit and the perf tests built alone against the
# installed package, and with the README's own programs.
set -euo pipefail

root=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
mkdir -p "${1:?usage: run.sh BUILD-DIR [CMAKE-OPTION...]}"
work=$(cd "$1" && pwd)
options=(-DCMAKE_BUILD_TYPE=Debug "${@:2}")
jobs=$(nproc)
export OMP_PROC_BIND=${OMP_PROC_BIND:-false}

build() { # build SOURCE-DIR NAME [CMAKE-OPTION...]
    echo "== $2"
    cmake -S "$root/$1" -B "$work/$2" "${options[@]}" "${@:3}"
    cmake --build "$work/$2" -j "$jobs"
}

for kind in static shared; do
    shared=$([ $kind = static ] && echo OFF || echo ON)
    prefix=$work/$kind-prefix
    rm -rf "$prefix"
    build . $kind-project "-DBUILD_SHARED_LIBS=$shared"
    cmake --install "$work/$kind-project" --prefix "$prefix"
    "$prefix/bin/chunked_prefill" --version

    build unit_tests/consumers/installed $kind-installed "-DChunkedPrefill_ROOT=$prefix"
    "$work/$kind-installed/engine"

    build unit_tests/consumers/subdirectory $kind-subdirectory "-DBUILD_SHARED_LIBS=$shared"
    "$work/$kind-subdirectory/engine"
    rm -rf "$work/nothing"
    cmake --install "$work/$kind-subdirectory" --prefix "$work/nothing"
    [ ! -e "$work/nothing" ] || { echo "the subdirectory installs files into its parent's prefix"; exit 1; }
done

build unit_tests unit_tests "-DChunkedPrefill_ROOT=$work/static-prefix" \
    -DChunkedPrefill_PROPERTY_BATCHES=500 -DChunkedPrefill_SOAK_BUILDS=20000
# The long ones run in the project's own builds.
(cd "$work/unit_tests" && ctest -j "$jobs" --output-on-failure --no-tests=error \
    --exclude-regex '^(Size|DeviceChecks|PrefixAttention|Replay)\.|LongLines')
build perf_tests perf_tests "-DChunkedPrefill_ROOT=$work/shared-prefix"
"$work/perf_tests/chunked_prefill_perf" --benchmark_filter=empty_kernel --benchmark_min_time=0.01

# fenced LANGUAGE LINE: the README's first block of that language after that line.
fenced() {
    awk -v open="\`\`\`$1" -v after="$2" '
        $0 == after { seen = 1 }
        seen && !inside && $0 == open { inside = 1; next }
        inside && $0 == "```" { exit }
        inside' "$root/README.md"
}
readme() { # readme NAME SECTION OUTPUT: builds and runs a section's program
    echo "== $1"
    mkdir -p "$work/$1-source"
    fenced cpp "$2" >"$work/$1-source/main.cpp"
    fenced cmake "$2" >"$work/$1-source/CMakeLists.txt"
    cmake -S "$work/$1-source" -B "$work/$1" "${options[@]}" "-DChunkedPrefill_ROOT=$work/static-prefix"
    cmake --build "$work/$1"
    diff <("$work/$1/engine") <(fenced "" "$3")
}
readme readme "## Use it from C++" "It prints"
if [ -n "$(find "$work/static-prefix" -name ChunkedPrefillAttentionTargets.cmake)" ]; then
    readme readme-attention "## The attention component" \
        "Its output, the LSE of the merged state being in base e again:"
fi
