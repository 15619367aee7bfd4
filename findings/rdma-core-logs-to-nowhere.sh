#!/usr/bin/env bash
# VERBS_LOG_LEVEL=4 prints nothing, neither does MLX5_DEBUG_MASK: without VERBS_LOG_FILE rdma-core drops what it has to say.
#
# One expects: with a level and no file the lines go to standard error.
# What happens: in a release build the log is off unless VERBS_LOG_FILE names a file that can be opened; a file that cannot is no error. The
#   level is a number, and a word such as `debug` is 0, off. /dev/stderr is a file. MLX5_DEBUG_FILE makes its file, which stays empty: the
#   lines that MLX5_DEBUG_MASK chooses are not in such a build.
# What follows: for a device that cannot be opened, set VERBS_LOG_LEVEL=4 and VERBS_LOG_FILE=/dev/stderr.
#
# Seen with rdma-core 44.0 and 56.1, with a stand-in for the kernel's side that refuses to open an EFA, on which libefa logs an error.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/log.c" <<'C'
#include "card.h"
int main(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  if (!list || !*list) return puts("no device"), 2;
  fprintf(stderr, "open: %s\n", ibv_open_device(*list) ? "yes" : "no");
}
C
for version in bookworm=44.0-2 trixie=56.1-1; do
    suite=${version%=*}
    verbs_get "$suite" "${version#*=}"
    verbs_build "$suite" log
    seen=$(for file in none /dev/stderr /no/such/folder/file; do for level in 4 debug; do
        settings=("VERBS_LOG_LEVEL=$level")
        [ $file = none ] || settings+=("VERBS_LOG_FILE=$file")
        said=$(verbs_run "$suite" efa "${settings[@]}" log 2>&1 | sed 's/.*ibv_cmd_get_context failed.*/a line of the log/' | sort)
        echo "level $level, file $file: ${said//$'\n'/ }"
    done; done)
    compare "rdma-core ${version#*=}" "$seen" \
        "level 4, file none: open: no
level debug, file none: open: no
level 4, file /dev/stderr: a line of the log open: no
level debug, file /dev/stderr: open: no
level 4, file /no/such/folder/file: open: no
level debug, file /no/such/folder/file: open: no"
    verbs_run "$suite" mlx5 MLX5_DEBUG_MASK=0xffff MLX5_DEBUG_FILE=/tmp/debug log 2>/dev/null
    compare "rdma-core ${version#*=}, MLX5_DEBUG_FILE" "$(wc -c <"$folder/$suite/root/tmp/debug") bytes" "0 bytes"
done
exit "$status"
