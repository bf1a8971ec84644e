#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
set -euo pipefail

usage() {
    cat <<'END'
usage: cmake/setup.sh run|test|build [--cuda[=ARCH] | --serial] [--prefix DIR] [-DNAME=VALUE...]

  run    installs what is missing, builds, and shows the metadata of an example batch
  test   the same, and runs the tests
  build  builds the library, the tool, the tests and the benchmarks, and runs none

  --cuda[=ARCH]  the CUDA backend (needs nvcc); ARCH is one of Kokkos's architectures and defaults
                 to that of the GPU here, or to HOPPER90
  --serial       the Serial backend alone; the default is OpenMP beside Serial
  --prefix DIR   where dependencies are built, default build/deps
  -D...          handed to CMake

For Debian and Ubuntu, as root or with sudo. Takes an installed Kokkos (Kokkos_ROOT,
CMAKE_PREFIX_PATH), else the distribution's, else builds one below the prefix, with Kokkos Kernels.
What is done already is not done again. Builds in build/openmp, build/cuda or build/serial.
END
}

root=$(cd "${BASH_SOURCE[0]%/*}/.." && pwd)
# shellcheck source=SCRIPTDIR/steps.sh
. "$root/cmake/steps.sh"

action='' preset=openmp cuda_arch='' prefix=$root/build/deps cmake_options=()
while [ $# -gt 0 ]; do
    case $1 in
    run | test | build) action=$1 ;;
    --serial) preset=serial ;;
    --cuda) preset=cuda ;;
    --cuda=*) preset=cuda cuda_arch=${1#*=} ;;
    --prefix)
        [ $# -ge 2 ] || fail "--prefix needs a folder"
        prefix=$2
        shift
        ;;
    --prefix=*) prefix=${1#*=} ;;
    -D?*) cmake_options+=("$1") ;;
    -h | --help) usage && exit ;;
    *) fail "$1: unknown, see --help" ;;
    esac
    shift
done
[ -n "$action" ] || fail "run, test or build? see --help"
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
logs=$prefix/log
cd "$root"

# Tools and libraries.
if [ "$preset" = cuda ]; then
    command -v nvcc >/dev/null || export PATH=$PATH:/usr/local/cuda/bin
    command -v nvcc >/dev/null ||
        fail "--cuda needs nvcc: install NVIDIA's CUDA toolkit 12 or newer and put nvcc on PATH"
fi
packages=(libcli11-dev libfmt-dev nlohmann-json3-dev libgtest-dev libbenchmark-dev)
command -v "${CXX:-g++}" >/dev/null || packages+=(g++)
command -v make >/dev/null || packages+=(make)
command -v cmake >/dev/null || packages+=(cmake)
install_packages "${packages[@]}"

# A Python environment below the prefix, for what comes through pip.
make_venv() {
    [ -x "$prefix/venv/bin/pip" ] && return
    install_packages python3-venv ca-certificates
    step "Making a Python environment" "install python3-venv" "$logs/venv.log" \
        python3 -m venv --clear "$prefix/venv"
}

cmake=cmake
if ! at_least "$(cmake --version | sed -n 's/^cmake version //p')" 3.23; then
    cmake=$prefix/venv/bin/cmake
    if [ ! -x "$cmake" ]; then
        make_venv
        step "Installing a newer CMake" "check the network, or install CMake 3.23 or newer" \
            "$logs/cmake.log" "$prefix/venv/bin/pip" install --disable-pip-version-check 'cmake>=3.23,<5'
    fi
fi

# Kokkos: an installed one, the distribution's, or one of our own.
backend=$(tr '[:lower:]' '[:upper:]' <<<"$preset")
find_kokkos() { # find_kokkos CMAKE-OPTION...
    rm -rf "$prefix/probe"
    mkdir -p "$logs"
    "$cmake" -S cmake/probe -B "$prefix/probe" "-DChunkedPrefill_REQUIRE_BACKENDS=$backend" "$@" \
        >"$logs/probe.log" 2>&1 || return 1
    { read -r kokkos_version && read -r kokkos_dir && read -r nvcc_wrapper; } <"$prefix/probe/kokkos.txt"
}
distribution_has_kokkos() {
    [ "$preset" != cuda ] &&
        at_least "$(apt-cache policy libkokkos-dev 2>/dev/null | sed -n 's/^ *Candidate: //p')" 4.5
}
if ! find_kokkos; then
    if distribution_has_kokkos; then
        install_packages libkokkos-dev
    fi
    if ! find_kokkos; then
        install=$prefix/kokkos-$preset
        options=(--kernels --cmake "$cmake" --downloads "$prefix" --pip "$prefix/venv/bin/pip")
        [ "$preset" = serial ] || options+=(--openmp)
        if [ "$preset" = cuda ] && [ -z "$cuda_arch" ]; then
            cuda_arch=HOPPER90
            ! nvidia-smi -L >/dev/null 2>&1 || cuda_arch=auto
        fi
        [ "$preset" != cuda ] || options+=(--cuda "$cuda_arch")
        [ -e "$prefix/pycompadre-1.7.6.tar.gz" ] || make_venv
        "$root/cmake/build_kokkos.sh" "$install" "${options[@]}"
        find_kokkos "-DKokkos_ROOT=$install" ||
            fail "the Kokkos in $install does not work, see $logs/probe.log: delete the folder and run again"
    fi
fi
echo "Using Kokkos $kokkos_version in $kokkos_dir"
cmake_options+=("-DKokkos_DIR=$kokkos_dir")
[ -z "$nvcc_wrapper" ] || cmake_options+=("-DCMAKE_CXX_COMPILER=$nvcc_wrapper")

# The project.
build=build/$preset
targets=()
[ "$action" != run ] || targets=(--target chunked_prefill_tool)
step "Configuring in $build" "correct what it names and run again" "$logs/configure.log" \
    "$cmake" --preset "$preset" -DChunkedPrefill_ENABLE_BENCHMARKS=ON "${cmake_options[@]}"
step "Building in $build" "correct what it names and run again" "$logs/build.log" \
    "$cmake" --build "$build" -j "$(nproc)" "${targets[@]}"

export OMP_PROC_BIND=${OMP_PROC_BIND:-false}
case $action in
run)
    example=src/cli/examples/mooncake_16.json
    printf '\n$ %s plan %s\n' "$build/src/cli/chunked_prefill" "$example"
    "$build/src/cli/chunked_prefill" plan "$example"
    ;;
test) "${cmake%cmake}ctest" --preset "$preset" -j "$(nproc)" ;;
esac
