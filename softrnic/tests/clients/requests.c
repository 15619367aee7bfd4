/* Two queue pairs of one process send each other requests of random kinds and shapes, in chains of random length. A
   second copy of the memory says what is to be there, and each completion is checked field by field. Then queue pairs
   are destroyed whose events nobody has read.

   requests SEED CHAINS [extended]: prints one line, and ends with 0 if all is right. The completion queue is polled
   by ibv_poll_cq, or is an extended one. */

#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HALF = 1 << 16, ELEMENTS = 4, DEPTH = 64, CHAIN = 5, INLINE = 300 };

/* The first half is only read, the second only written. */
static unsigned char memory[2 * HALF], expected[2 * HALF];
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_cq_ex *extended;
static struct ibv_mr *mr;
static unsigned long long state;

static void fail(const char *format, ...)
{
    va_list words;
    va_start(words, format);
    vprintf(format, words);
    puts("");
    exit(1);
}

static unsigned below(unsigned end)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(state >> 33) % end;
}

static struct ibv_qp *make(unsigned *granted)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = ELEMENTS, .max_recv_sge = ELEMENTS,
                .max_inline_data = INLINE}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    if (!qp || init.cap.max_inline_data < INLINE || init.cap.max_send_wr < DEPTH)
        fail("no queue pair, or one of another size");
    *granted = init.cap.max_inline_data;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        fail("not to INIT");
    return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, int may_send)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .rq_psn = 5,
        .max_dest_rd_atomic = 4, .min_rnr_timer = 1, .max_rd_atomic = 4, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
        .sq_psn = 5, .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}}};
    if (ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid))
        fail("no GID");
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        fail("not to RTR");
    attr.qp_state = IBV_QPS_RTS;
    if (may_send && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
        fail("not to RTS");
}

/* Elements in one half, none of which overlap; returns how many bytes they have. */
static unsigned elements(struct ibv_sge *sge, int count, int half, unsigned most)
{
    unsigned total = 0, at = half * HALF + below(HALF / 2);
    for (int i = 0; i < count; i++) {
        sge[i] = (struct ibv_sge){(uintptr_t)memory + at, below(most / count + 1), mr->lkey};
        at += sge[i].length + below(64);
        total += sge[i].length;
    }
    return total;
}

/* What the copy has at an address of the memory. */
static unsigned char *copy_of(uint64_t address)
{
    return expected + (address - (uintptr_t)memory);
}

static void gather(unsigned char *out, const struct ibv_sge *sge, int count)
{
    for (int i = 0; i < count; out += sge[i++].length)
        memcpy(out, copy_of(sge[i].addr), sge[i].length);
}

static void scatter(const unsigned char *data, unsigned bytes, const struct ibv_sge *sge, int count)
{
    for (int i = 0; i < count && bytes; i++) {
        unsigned part = sge[i].length < bytes ? sge[i].length : bytes;
        memcpy(copy_of(sge[i].addr), data, part);
        data += part, bytes -= part;
    }
}

/* 1: there is a completion. */
static int look(struct ibv_wc *wc)
{
    struct ibv_poll_cq_attr none = {0};
    if (!extended)
        return ibv_poll_cq(cq, 1, wc);
    if (ibv_start_poll(extended, &none))
        return 0;
    wc->wr_id = extended->wr_id, wc->status = extended->status;
    wc->opcode = ibv_wc_read_opcode(extended), wc->byte_len = ibv_wc_read_byte_len(extended);
    wc->qp_num = ibv_wc_read_qp_num(extended), wc->wc_flags = ibv_wc_read_wc_flags(extended);
    wc->imm_data = ibv_wc_read_imm_data(extended);
    ibv_end_poll(extended);
    return 1;
}

static struct ibv_wc next(void)
{
    struct ibv_wc wc = {0};
    for (long spins = 0; look(&wc) == 0; spins++)
        if (spins > 400000000)
            fail("no completion");
    return wc;
}

static struct ibv_cq *make_cq(int is_extended)
{
    struct ibv_cq_init_attr_ex init = {
        .cqe = 4 * DEPTH, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM};
    if (!is_extended)
        return ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
    extended = ibv_create_cq_ex(context, &init);
    return extended ? ibv_cq_ex_to_cq(extended) : NULL;
}

static void check_received(const struct ibv_wc *wc, uint64_t id, const struct ibv_qp *to, const struct ibv_send_wr *wr,
                           unsigned bytes)
{
    int is_write = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM, has_imm = is_write || wr->opcode == IBV_WR_SEND_WITH_IMM;
    if (wc->wr_id != id || wc->status || wc->qp_num != to->qp_num || wc->byte_len != bytes ||
        wc->opcode != (is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) ||
        !!(wc->wc_flags & IBV_WC_WITH_IMM) != has_imm || (has_imm && wc->imm_data != wr->imm_data))
        fail("received: id %lu status %d qp %x bytes %u opcode %d flags %x", wc->wr_id, wc->status, wc->qp_num,
             wc->byte_len, wc->opcode, wc->wc_flags);
}

static void check_sent(const struct ibv_wc *wc, const struct ibv_qp *from, const struct ibv_send_wr *wr, unsigned bytes)
{
    static const int opcodes[] = {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND,
                                  IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD};
    int returns = wr->opcode >= IBV_WR_RDMA_READ;
    if (wc->wr_id != wr->wr_id || wc->status || wc->qp_num != from->qp_num || (int)wc->opcode != opcodes[wr->opcode] ||
        (returns && wc->byte_len != bytes))
        fail("sent: id %lu status %d qp %x bytes %u opcode %d", wc->wr_id, wc->status, wc->qp_num, wc->byte_len,
             wc->opcode);
}

/* A fetch and add, or a compare and swap that may find another value. */
static void atomic(struct ibv_send_wr *wr, struct ibv_sge *sge)
{
    uint64_t target = HALF + below(HALF / 16) * 8, result = HALF + HALF / 2 + below(HALF / 16) * 8;
    int is_swap = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    uint64_t before, operand = below(1000);
    memcpy(&before, expected + target, 8);
    uint64_t compare = before + below(2), after = !is_swap ? before + operand : before == compare ? operand : before;
    *sge = (struct ibv_sge){(uintptr_t)memory + result, 8, mr->lkey};
    wr->num_sge = 1;
    wr->wr.atomic.remote_addr = (uintptr_t)memory + target, wr->wr.atomic.rkey = mr->rkey;
    wr->wr.atomic.compare_add = is_swap ? compare : operand, wr->wr.atomic.swap = operand;
    memcpy(expected + target, &after, 8);
    memcpy(expected + result, &before, 8);
}

static int is_atomic(const struct ibv_send_wr *wr)
{
    return wr->opcode > IBV_WR_RDMA_READ;
}

static int takes_receive(const struct ibv_send_wr *wr)
{
    return wr->opcode > IBV_WR_RDMA_WRITE && wr->opcode < IBV_WR_RDMA_READ;
}

/* Makes up a request and its receive, and does in the copy what it is to do; returns its bytes. */
static unsigned make_up(struct ibv_send_wr *wr, struct ibv_sge *sge, struct ibv_qp *to, unsigned most_inline)
{
    static unsigned char data[HALF];
    struct ibv_sge place[ELEMENTS];
    int is_read = wr->opcode == IBV_WR_RDMA_READ, is_inline = wr->opcode < IBV_WR_RDMA_READ && below(2);
    if (is_atomic(wr)) {
        atomic(wr, sge);
        return 8;
    }
    wr->num_sge = below(ELEMENTS + 1);
    unsigned bytes = elements(sge, wr->num_sge, is_read, is_inline ? most_inline : 9000);
    if (is_inline)
        wr->send_flags |= IBV_SEND_INLINE;
    unsigned at = (is_read ? 0 : HALF) + below(HALF / 2);
    if (is_read || wr->opcode <= IBV_WR_RDMA_WRITE_WITH_IMM)
        wr->wr.rdma.remote_addr = (uintptr_t)memory + at, wr->wr.rdma.rkey = mr->rkey;
    if (is_read) {
        memcpy(data, expected + at, bytes);
        scatter(data, bytes, sge, wr->num_sge);
        return bytes;
    }
    gather(data, sge, wr->num_sge);
    int is_write = wr->opcode <= IBV_WR_RDMA_WRITE_WITH_IMM;
    if (is_write)
        memcpy(expected + at, data, bytes);
    if (takes_receive(wr)) {
        int pieces = is_write ? below(2) : 1 + below(ELEMENTS);
        struct ibv_recv_wr take = {.wr_id = ~wr->wr_id, .sg_list = place, .num_sge = pieces}, *bad;
        elements(place, pieces, 1, 9000);
        if (!is_write) {
            place[pieces - 1].length = 10000;
            scatter(data, bytes, place, pieces);
        }
        if (ibv_post_recv(to, &take, &bad))
            fail("a receive is refused");
    }
    return bytes;
}

static void chain(struct ibv_qp *from, struct ibv_qp *to, unsigned most_inline, uint64_t id)
{
    struct ibv_sge sge[CHAIN][ELEMENTS];
    struct ibv_send_wr wr[CHAIN], *bad;
    unsigned bytes[CHAIN];
    int count = 1 + below(CHAIN), left = 0, sent = 0, received = 0;
    for (int i = 0; i < count; i++) {
        int is_last = i + 1 == count;
        wr[i] = (struct ibv_send_wr){.wr_id = id + i, .next = is_last ? NULL : &wr[i + 1], .sg_list = sge[i],
                                     .opcode = below(7), .imm_data = below(1 << 30),
                                     .send_flags = is_last || !below(3) ? IBV_SEND_SIGNALED : 0};
        bytes[i] = make_up(&wr[i], sge[i], to, most_inline);
        left += !!(wr[i].send_flags & IBV_SEND_SIGNALED) + takes_receive(&wr[i]);
    }
    if (ibv_post_send(from, wr, &bad))
        fail("a request is refused");
    for (; left; left--) {
        struct ibv_wc wc = next();
        if (wc.opcode & IBV_WC_RECV) {
            while (received < count && !takes_receive(&wr[received]))
                received++;
            if (received == count)
                fail("a receive too many");
            check_received(&wc, ~wr[received].wr_id, to, &wr[received], bytes[received]);
            received++;
        } else {
            while (sent < count && !(wr[sent].send_flags & IBV_SEND_SIGNALED))
                sent++;
            if (sent == count)
                fail("a send too many");
            check_sent(&wc, from, &wr[sent], bytes[sent]);
            sent++;
        }
    }
}

/* The first message to a queue pair that may only receive is an event for it. */
static void raise_an_event(struct ibv_qp *pair[2])
{
    unsigned granted;
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
    pair[0] = make(&granted), pair[1] = make(&granted);
    connect_to(pair[0], pair[1], 1), connect_to(pair[1], pair[0], 0);
    if (ibv_post_send(pair[0], &wr, &bad))
        fail("a request is refused");
    if (next().status)
        fail("a WRITE of nothing fails");
}

static void events(void)
{
    struct ibv_qp *read[2], *unread[2];
    struct ibv_async_event event;
    raise_an_event(read);
    if (ibv_get_async_event(context, &event) || event.event_type != IBV_EVENT_COMM_EST || event.element.qp != read[1])
        fail("event %d", event.event_type);
    ibv_ack_async_event(&event);
    raise_an_event(unread);
    for (int i = 0; i < 2; i++)
        if (ibv_destroy_qp(unread[i]) || ibv_destroy_qp(read[i]))
            fail("a queue pair stays");
}

int main(int count, char **words)
{
    int devices, chains;
    struct ibv_device **list = ibv_get_device_list(&devices);
    if (count < 3 || !list || !devices)
        fail("requests SEED CHAINS, and a device");
    state = strtoull(words[1], NULL, 0), chains = atoi(words[2]);
    context = ibv_open_device(list[0]);
    pd = context ? ibv_alloc_pd(context) : NULL;
    cq = pd ? make_cq(count > 3) : NULL;
    mr = cq ? ibv_reg_mr(pd, memory, sizeof memory,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC)
            : NULL;
    if (!mr)
        fail("no objects");
    for (unsigned at = 0; at < sizeof memory; at++)
        memory[at] = expected[at] = below(256);
    unsigned granted[2];
    struct ibv_qp *qp[2] = {make(&granted[0]), make(&granted[1])};
    connect_to(qp[0], qp[1], 1), connect_to(qp[1], qp[0], 1);
    for (int at = 0; at < chains; at++) {
        int side = below(2);
        chain(qp[side], qp[!side], granted[side], (uint64_t)at * CHAIN);
        if (memcmp(memory, expected, sizeof memory))
            fail("chain %d of seed %s: the memory is wrong", at, words[1]);
    }
    events();
    if (ibv_destroy_qp(qp[0]) || ibv_destroy_qp(qp[1]) || ibv_destroy_cq(cq) || ibv_dereg_mr(mr) ||
        ibv_dealloc_pd(pd) || ibv_close_device(context))
        fail("an object stays");
    ibv_free_device_list(list);
    printf("%d chains are right\n", chains);
    return 0;
}
