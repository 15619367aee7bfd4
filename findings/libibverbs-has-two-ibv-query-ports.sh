#!/usr/bin/env bash
# The ibv_query_port that dlsym finds is not the one in the header. It never fills port_cap_flags2 and active_speed_ex, so an XDR port
# looks like NDR, at half its speed.
#
# One expects: a program that loads libibverbs at run time, as NCCL and its plugins do, calls the same functions as one that links it.
# What happens: the header makes ibv_query_port an inline function, which passes the size of the caller's structure to the provider. The
#   exported function of that name exists for old programs, and fills only the fields that the structure had then. Newer fields keep what
#   was in memory. The speed of XDR (200 Gb/s a lane) does not fit the old field of 8 bits. The kernel puts NDR there, and the true speed
#   in the new field.
# What follows: such a program has to call the query_port of the context, as the inline function does, or it takes XDR for NDR. Clear the
#   structure before the call.
#
# Seen with libibverbs and libmlx5 of rdma-core 56.1, with a stand-in for the kernel's side that has an XDR port.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

cat >"$folder/port.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include "card.h"
static void show(const char *name, const struct ibv_port_attr *port) {
  const unsigned untouched = 0xeeeeeeee;
  printf("%s: active_speed %d, active_speed_ex %s", name, port->active_speed, port->active_speed_ex == untouched ? "not written\n" : "");
  if (port->active_speed_ex != untouched) printf("%u\n", port->active_speed_ex);
}
int main(void) {
  struct ibv_port_attr port;
  open_device();
  memset(&port, 0xee, sizeof port);
  ibv_query_port(context, 1, &port);
  show("header", &port);
  int (*found)(struct ibv_context *, uint8_t, struct ibv_port_attr *) = dlsym(RTLD_DEFAULT, "ibv_query_port");
  memset(&port, 0xee, sizeof port);
  found(context, 1, &port);
  show("dlsym", &port);
}
C
verbs_get trixie 56.1-1
verbs_build trixie port
compare "rdma-core 56.1-1 (NDR is 128, XDR 256)" "$(verbs_run trixie mlx5 port)" \
    "header: active_speed 128, active_speed_ex 256
dlsym: active_speed 128, active_speed_ex not written"
exit "$status"
