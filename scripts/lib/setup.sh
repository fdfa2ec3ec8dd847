# shellcheck shell=bash
# Gets a machine ready for guardfs: Debian packages, and a virtual environment outside the tree. Sourced by the
# scripts beside it, which then become what they are named after; speaks on standard error only.
#
# Exit codes: 69 the machine lacks something that only its owner can add (packages without root, Python, FUSE)
#             71 a step of the installation failed; the next run takes it up again
#             73 the cache folder cannot be written
#
# Globals are prefixed, and all else is local: a caller's exported variable must reach guardfs as it was.

guardfs_tree=$(CDPATH='' cd -P -- "${BASH_SOURCE[0]%/*}/../.." && pwd)
guardfs_cache=${XDG_CACHE_HOME:-~/.cache}/guardfs # the tilde also holds where HOME is unset

# program:package, needed at every start; what the venv is built with is listed in find_missing.
guardfs_programs=(fusermount3:fuse3)

say() { printf 'guardfs: %s\n' "$*" >&2; }

die() {
  local status=$1
  shift
  say "$*"
  exit "$status"
}

# FNV-1a into REPLY, since a program that hashes would cost every start a process.
short_hash() {
  local LC_ALL=C text=$1 hash=2166136261 i byte
  for ((i = 0; i < ${#text}; i++)); do
    printf -v byte %d "'${text:i:1}"
    hash=$(((hash ^ byte & 255) * 16777619 & 0xffffffff))
  done
  printf -v REPLY %08x "$hash"
}

short_hash "$guardfs_tree"
guardfs_venv=$guardfs_cache/venv-$REPLY

# Into REPLY: what a whole venv's stamp says, but for the extra in its first line. It holds the part of
# pyproject.toml that pip acts on, and the places, since neither a venv nor an editable install can be moved.
expected_stamp() {
  local project=''
  IFS= read -r -d '' project <"$guardfs_tree/pyproject.toml" || true
  REPLY=$guardfs_tree$'\n'$guardfs_venv$'\n'${project%%$'\n[tool.'*}
}

# A venv with [dev] serves for running, too. Its python is a link to a versioned interpreter, and
# dangles when that one is replaced.
venv_is_whole() {
  local extra=$1 stamp=''
  [[ -x $guardfs_venv/bin/python && -f $guardfs_venv/stamp ]] || return 1
  IFS= read -r -d '' stamp <"$guardfs_venv/stamp" || true
  expected_stamp
  [[ $stamp == "$extra"$'\n'"$REPLY" || $stamp == '[dev]'$'\n'"$REPLY" ]]
}

find_missing_programs() {
  local need
  for need in "$@"; do
    type -P "${need%%:*}" >/dev/null || packages+=("${need#*:}")
  done
}

# Into python: the interpreter, by the versioned name that no upgrade gives to another one. Into packages: what
# it lacks for making a venv and for compiling pyfuse3.
find_python() {
  local name answer probe='
import importlib.util, os, sys, sysconfig
if sys.version_info >= (3, 11):
    print(os.path.realpath(sys._base_executable))
    debian = "python3.%d" % sys.version_info[1]
    if not os.path.exists(sysconfig.get_path("include") + "/Python.h"):
        print(debian + "-dev")
    if not importlib.util.find_spec("ensurepip"):
        print(debian + "-venv")
'
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    mapfile -t answer < <("$name" -I -c "$probe" 2>/dev/null </dev/null)
    if ((${#answer[@]})); then
      python=${answer[0]}
      packages+=("${answer[@]:1}")
      return
    fi
  done
  if type -P python3 >/dev/null; then
    die 69 'Python 3.11 or newer is needed; put one first in PATH'
  fi
  packages+=(python3 python3-dev python3-venv)
}

find_missing() {
  packages=()
  find_missing_programs "${guardfs_programs[@]}"
  venv_is_whole "$extra" && return
  find_missing_programs gcc:gcc pkg-config:pkg-config
  pkg-config --exists fuse3 2>/dev/null || packages+=(libfuse3-dev)
  find_python
}

# Only root installs packages; anybody else gets the line to copy.
refuse_without_means() {
  ((${#packages[@]})) || return 0
  type -P apt-get >/dev/null || die 69 "missing here, by their Debian names: ${packages[*]}"
  ((EUID == 0)) || die 69 "packages are missing; install them with: sudo apt-get install -y ${packages[*]}"
}

# Runs one step with its output in the log; if it fails, says which, why, and where to read on.
step() {
  local what=$1 log=$guardfs_cache/setup.log reason
  shift
  say "$what"
  "$@" </dev/null >"$log" 2>&1 && return
  reason=$(grep -E '^ *(E|error|ERROR|fatal):' "$log" | tail -n 1)
  die 71 "failed: $what: ${reason:-$(tail -n 1 "$log")} (all of it: $log)"
}

apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  # Lists that cannot be renewed may still do: whether they matter, the installation shows.
  apt-get update || true
  apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

install_packages() {
  ((${#packages[@]})) || return 0
  step "installing Debian packages: ${packages[*]}" apt_install "${packages[@]}"
  find_missing
  ((${#packages[@]} == 0)) || die 71 "still missing after their installation: ${packages[*]}"
}

# The stamp is the last thing written and the first removed: a venv without one is half done, and begun anew.
install_venv() {
  if venv_is_whole "$extra"; then return; fi
  if [[ ! -x $guardfs_venv/bin/python || ! -f $guardfs_venv/stamp ]]; then
    rm -rf -- "$guardfs_venv"
    step "making a virtual environment in $guardfs_venv" "$python" -I -m venv "$guardfs_venv"
  fi
  rm -f -- "$guardfs_venv/stamp"
  step 'installing Python packages, which can take a minute' \
    "$guardfs_venv/bin/python" -I -m pip install --no-input --progress-bar off --disable-pip-version-check \
    --editable "$guardfs_tree$extra"
  expected_stamp
  printf '%s\n%s' "$extra" "$REPLY" >"$guardfs_venv/stamp"
}

take_turn() {
  flock -n 9 && return
  say 'waiting for another setup to finish'
  flock 9
}

# setup EXTRA, which is '' or '[dev]': returns at once, having started no program, if all is there already.
setup() {
  local extra=$1 python='' packages=()
  find_missing_programs "${guardfs_programs[@]}"
  if ((${#packages[@]} == 0)) && venv_is_whole "$extra"; then return; fi

  find_missing
  refuse_without_means
  if ! mkdir -p -- "$guardfs_cache" 2>/dev/null || [[ ! -w $guardfs_cache ]]; then
    die 73 "cannot write to $guardfs_cache; set XDG_CACHE_HOME to a folder of yours"
  fi
  (
    take_turn
    find_missing # the one before us may have done it all
    install_packages
    install_venv
  ) 9>>"$guardfs_cache/setup.lock"
}

require_fuse() {
  local advice='on a host run "modprobe fuse" as root, in a container start it with --device /dev/fuse --cap-add SYS_ADMIN'
  [[ -c /dev/fuse ]] || die 69 "there is no /dev/fuse: $advice"
  [[ -r /dev/fuse && -w /dev/fuse ]] || die 69 '/dev/fuse is closed to this user: run "chmod 666 /dev/fuse" as root'
  { : <>/dev/fuse; } 2>/dev/null || die 69 "/dev/fuse cannot be opened: $advice"
}
