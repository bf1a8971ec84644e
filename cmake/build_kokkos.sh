#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
set -euo pipefail

usage() {
    cat <<'END'
usage: cmake/build_kokkos.sh PREFIX [--openmp | --threads] [--cuda ARCH] [--kernels]
                             [--bounds-checks] [--cxx COMPILER] [--cxx-flags FLAGS]
                             [--cmake CMAKE] [--pip PIP] [--downloads DIR]

Builds Kokkos 4.5.1, and on request Kokkos Kernels, from the source distribution of the PyPI package
pycompadre, which carries both, and installs into PREFIX. Does nothing when PREFIX holds this very
build.

  --openmp         the OpenMP backend beside Serial
  --threads        the Threads backend beside Serial
  --cuda ARCH      the CUDA backend for one of Kokkos's architectures, such as HOPPER90, or for that
                   of the GPU here (auto)
  --kernels        Kokkos Kernels too, its BLAS and batched parts
  --bounds-checks  Views refuse an index outside their extents
  --cxx COMPILER   the (host) compiler, default $CXX or g++
  --cxx-flags FLAGS  handed to it
  --cmake CMAKE    default cmake
  --pip PIP        default python3 -m pip
  --downloads DIR  where the source distribution is kept, default PREFIX/..
END
}

here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
# shellcheck source=SCRIPTDIR/steps.sh
. "$here/steps.sh"

package=pycompadre-1.7.6
sha256=c766ec4d445ce076069be4b8c51a23ffac4ee79ea949ca86446bfd8c299b154c

prefix='' openmp=OFF threads=OFF cuda='' kernels=OFF bounds_checks=OFF cxx=${CXX:-g++}
cxx_flags='' cmake=cmake pip='' downloads=''
while [ $# -gt 0 ]; do
    case $1 in
    --openmp) openmp=ON ;;
    --threads) threads=ON ;;
    --kernels) kernels=ON ;;
    --bounds-checks) bounds_checks=ON ;;
    --cuda | --cxx | --cxx-flags | --cmake | --pip | --downloads)
        [ $# -ge 2 ] || fail "$1 needs a value"
        option=${1#--}
        declare "${option//-/_}=$2"
        shift
        ;;
    -h | --help) usage && exit ;;
    -*) fail "unknown option $1, see --help" ;;
    *) prefix=$1 ;;
    esac
    shift
done
[ -n "$prefix" ] || fail "PREFIX is missing, see --help"
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
downloads=${downloads:-${prefix%/*}}
logs=$prefix/log

build="$package openmp=$openmp threads=$threads cuda=$cuda bounds_checks=$bounds_checks cxx=$cxx"
build+=" kernels=$kernels $cxx_flags $($cxx --version | head -n 1)"
[ "$(cat "$prefix/.build" 2>/dev/null)" != "$build" ] || exit 0
rm -f "$prefix/.build"

archive=$downloads/$package.tar.gz
verify() {
    echo "$sha256  $archive" | sha256sum --check --status
}
if ! verify 2>/dev/null; then
    mkdir -p "$downloads"
    # shellcheck disable=SC2086  # several words
    step "Downloading the sources of Kokkos 4.5.1" \
        "check the network, or set Kokkos_ROOT to an installed Kokkos 4.5 or newer" \
        "$logs/download.log" ${pip:-python3 -m pip} download --disable-pip-version-check --no-deps \
        --no-binary "${package%-*}" --dest "$downloads" "${package%-*}==${package##*-}"
    verify || fail "$archive is not the file expected (SHA-256): delete it and run again"
fi

# CUDA 13 changed the signatures of three functions that Kokkos 4.5 calls, and dropped the
# architecture that nvcc_wrapper uses by default.
edit_for_cuda_13() {
    sed -i -z -E \
        -e 's/(cudaGraphAddDependencies\(graph, from, to), (numDependencies\))/\1, nullptr, \2/' \
        -e 's/(cudaMemAdvise\(devPtr, count, advice), device\)/\1, cudaMemLocation{cudaMemLocationTypeDevice, device})/' \
        -e 's/(cudaMemPrefetchAsync\(devPtr, count), dstDevice,/\1, cudaMemLocation{cudaMemLocationTypeDevice, dstDevice}, 0,/' \
        core/src/Cuda/Kokkos_Cuda_Instance.hpp
    sed -i 's/^default_arch="sm_70"/default_arch="sm_75"/' bin/nvcc_wrapper
}

work=$prefix/work
rm -rf "$work"
mkdir -p "$work"
tar -xzf "$archive" -C "$work" --strip-components=2 "$package/kokkos"
[ $kernels = OFF ] || tar -xzf "$archive" -C "$work" --strip-components=1 "$package/kokkos-kernels"
cd "$work"
options=(
    -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_STANDARD=20
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON
    "-DCMAKE_CXX_COMPILER=$cxx"
    "-DCMAKE_CXX_FLAGS=$cxx_flags"
    "-DCMAKE_INSTALL_PREFIX=$prefix"
    -DCMAKE_INSTALL_LIBDIR=lib
    -DKokkos_ENABLE_SERIAL=ON
    -DKokkos_ENABLE_OPENMP="$openmp"
    -DKokkos_ENABLE_THREADS="$threads"
    -DKokkos_ENABLE_DEBUG_BOUNDS_CHECK="$bounds_checks")
if [ -n "$cuda" ]; then
    nvcc=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    at_least "$nvcc" 13 && edit_for_cuda_13
    export NVCC_WRAPPER_DEFAULT_COMPILER=$cxx
    options+=(-DKokkos_ENABLE_CUDA=ON "-DCMAKE_CXX_COMPILER=$work/bin/nvcc_wrapper")
    [ "$cuda" = auto ] || options+=("-DKokkos_ARCH_$cuda=ON")
fi
advice="or set Kokkos_ROOT to an installed Kokkos 4.5 or newer"
backends="Serial$([ $openmp = OFF ] || echo ", OpenMP")$([ $threads = OFF ] || echo ", Threads")"
step "Configuring Kokkos 4.5.1 ($backends${cuda:+, CUDA $cuda})" \
    "$advice" "$logs/configure.log" "$cmake" -S . -B build "${options[@]}"
step "Building Kokkos 4.5.1" "$advice" "$logs/build.log" "$cmake" --build build -j "$(nproc)"
step "Installing Kokkos 4.5.1 into $prefix" "$advice" "$logs/install.log" "$cmake" --install build
if [ $kernels = ON ]; then
    options=(
        -DCMAKE_BUILD_TYPE=Release
        -DCMAKE_CXX_STANDARD=20
        -DCMAKE_POSITION_INDEPENDENT_CODE=ON
        "-DCMAKE_CXX_FLAGS=$cxx_flags"
        "-DCMAKE_INSTALL_PREFIX=$prefix"
        -DCMAKE_INSTALL_LIBDIR=lib
        "-DKokkos_ROOT=$prefix"
        -DKokkosKernels_ENABLE_ALL_COMPONENTS=OFF
        -DKokkosKernels_ENABLE_COMPONENT_BLAS=ON
        -DKokkosKernels_ENABLE_COMPONENT_BATCHED=ON
        -DKokkosKernels_ADD_DEFAULT_ETI=OFF)
    options+=("-DCMAKE_CXX_COMPILER=$([ -z "$cuda" ] && echo "$cxx" || echo "$prefix/bin/nvcc_wrapper")")
    advice="or set KokkosKernels_ROOT to an installed Kokkos Kernels 4.5 or newer"
    step "Configuring Kokkos Kernels 4.5.1" "$advice" "$logs/configure_kernels.log" \
        "$cmake" -S kokkos-kernels -B build-kernels "${options[@]}"
    step "Building Kokkos Kernels 4.5.1" "$advice" "$logs/build_kernels.log" \
        "$cmake" --build build-kernels -j "$(nproc)"
    step "Installing Kokkos Kernels 4.5.1 into $prefix" "$advice" "$logs/install_kernels.log" \
        "$cmake" --install build-kernels
fi
cd "$prefix"
rm -rf "$work"
echo "$build" >"$prefix/.build"
