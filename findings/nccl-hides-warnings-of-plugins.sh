#!/usr/bin/env bash
# NCCL hides warnings of a network plugin, although NCCL_DEBUG=WARN or INFO asks for warnings.
#
# One expects: NCCL_DEBUG=WARN shows every warning, and NCCL_DEBUG_SUBSYS chooses among the lines of level INFO.
# What happens: the logger that NCCL gives to plugins filters warnings by NCCL_DEBUG_SUBSYS as well. Its default is INIT and ENV (later
#   BOOTSTRAP too). A warning with the flag NET, the subsystem of network plugins, is not shown. NCCL's own warnings carry all flags.
# What follows: a plugin has to pass all flags (~0) with its warnings. An empty NCCL_DEBUG_SUBSYS hides those as well.
#
# Seen with nvidia-nccl-cu12 2.30.7 and 2.32.3, by an environment plugin, which gets the same logger as a network plugin and needs neither a
# GPU nor a driver. NCCL 2.20 to 2.28 filter likewise (`ncclDebugLog` in their src/debug.cc). The output of each release:
#   NCCL_DEBUG=WARN: shown: all
#   NCCL_DEBUG=INFO: shown: all
#   NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=NET: shown: net all
#   NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=: shown: nothing
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat >plugin.c <<'C'
#include <stddef.h>
#include <stdint.h>
typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
/* NCCL's level WARN is 2, its flag of the subsystem NET 16. */
static int warn(logger_t log) {
  log(2, 16, "plugin.c", 1, "warning with the flag of NET: net;");
  log(2, ~0ul, "plugin.c", 2, "warning with all flags: all;");
  return 0;
}
static int env_init(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix, logger_t log) { return warn(log); }
static int finalize(void) { return 0; }
static char *get(const char *name) {
  extern char *getenv(const char *);
  return getenv(name);
}
struct { const char *name; void *init; void *finalize; void *get; } ncclEnvPlugin_v2 = {"Warner", env_init, finalize, get};
C
cat >main.c <<'C'
int ncclGetUniqueId(void *id);
int main(void) { char id[128]; return ncclGetUniqueId(id); }
C
cc -shared -fPIC -w -o plugin.so plugin.c

status=0
for release in 2.30.7 2.32.3; do
    python3 -m pip install --quiet --no-deps --target "$release" "nvidia-nccl-cu12==$release" 2>/dev/null
    library=$folder/$release/nvidia/nccl/lib
    cc -o "main-$release" main.c "$library/libnccl.so.2" "-Wl,-rpath,$library"
    seen=""
    for setting in "NCCL_DEBUG=WARN" "NCCL_DEBUG=INFO" "NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=NET" "NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS="; do
        # shellcheck disable=SC2086
        output=$(env -i PATH="$PATH" NCCL_SOCKET_IFNAME=lo NCCL_ENV_PLUGIN="$folder/plugin.so" \
            $setting "./main-$release")
        shown=$(sed -n 's/.*WARN warning with .*: \([a-z]*\);.*/\1/p' <<<"$output" | xargs)
        seen+="$setting: shown: ${shown:-nothing}"$'\n'
    done
    printf 'NCCL %s\n%s' "$release" "$seen"
    [ "$seen" = "NCCL_DEBUG=WARN: shown: all
NCCL_DEBUG=INFO: shown: all
NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=NET: shown: net all
NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=: shown: nothing
" ] || { echo "NCCL $release behaves otherwise now" && status=1; }
done
exit $status
