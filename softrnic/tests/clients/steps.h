/* What these programs share: how they end early, and the way of a queue pair to another state. */

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

static struct ibv_context *context;
static int ack_timeout = 8;

static void stop(const char *what)
{
    printf("stopped: %s\n", what);
    exit(1);
}

static int step(struct ibv_qp *qp, struct ibv_qp *peer, enum ibv_qp_state to, int access, int rnr_retry)
{
    struct ibv_qp_attr attr = {
        .qp_state = to, .port_num = 1, .qp_access_flags = access, .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp_num, .rq_psn = 5, .sq_psn = 5, .max_dest_rd_atomic = 4, .max_rd_atomic = 4,
        .min_rnr_timer = 1, .timeout = ack_timeout, .retry_cnt = 1, .rnr_retry = rnr_retry,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}}};
    if (ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid))
        stop("no GID");
    int mask = IBV_QP_STATE;
    if (to == IBV_QPS_INIT)
        mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    if (to == IBV_QPS_RTR)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                IBV_QP_MIN_RNR_TIMER;
    if (to == IBV_QPS_RTS)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    return ibv_modify_qp(qp, &attr, mask);
}
