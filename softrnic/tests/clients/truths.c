/* Prints what a program sees of the first device: which sizes queues get, what is refused and how, and each field of
   each completion of random requests, wrong ones among them. A field that the library leaves as it was is printed as
   "-". Two libraries with the same device beneath print the same.

   truths SEED ROUNDS [careful | unflushed]
   careful: without what libbnxt_re of rdma-core 44 gets wrong: several elements of inline data, FETCH_ADD, queue
   pairs that are used again after a reset, and unsignaled sends before a failure.
   unflushed: without what libionic gets wrong: receives that are flushed after others have completed, which may also
   let a poll fail, unsignaled sends before a failure, and the number of bytes of an atomic. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "steps.h"

enum { HALF = 1 << 15, REGION = 2 * HALF, ELEMENTS = 4, INLINE = 60, CHAIN = 4, KEPT = 0x5a, SIDES = 2 };
static const uint64_t SENT_LAST = 1u << 20, RECEIVED_LAST = 1u << 21;

/* The first half is only read, the second only written. Beyond both is what no region has: inline data may be of there. */
static unsigned char memory[REGION + 64];
static struct ibv_pd *pd;
/* For all, and for nothing but reads by this process. */
static struct ibv_mr *mr, *closed;
static unsigned long long state;
static int is_careful, is_unflushed;

static unsigned below(unsigned end)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(state >> 33) % end;
}

#define PICK(list) (list)[below(sizeof(list) / sizeof *(list))]

static const char *name(int code)
{
    static char text[40];
    if (!code)
        return "done";
    const char *known = strerrorname_np(code < 0 ? -code : code);
    snprintf(text, sizeof text, "%s%s", code < 0 ? "-" : "", known ? known : "?");
    return text;
}

static struct ibv_cq *make_cq(int cqe)
{
    struct ibv_cq *cq = ibv_create_cq(context, cqe, NULL, NULL, 0);
    if (!cq)
        stop("no completion queue");
    return cq;
}

/* With operations: by ibv_create_qp_ex. */
static struct ibv_qp *create(struct ibv_cq *send, struct ibv_cq *receive, struct ibv_qp_cap *cap, int kind,
                             uint64_t operations)
{
    struct ibv_qp_init_attr_ex init = {.send_cq = send, .recv_cq = receive, .cap = *cap, .qp_type = kind, .pd = pd};
    struct ibv_qp *qp;
    errno = 0;
    if (operations) {
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = operations;
        qp = ibv_create_qp_ex(context, &init);
        *cap = init.cap;
    } else {
        struct ibv_qp_init_attr plain = {.send_cq = send, .recv_cq = receive, .cap = *cap, .qp_type = kind};
        qp = ibv_create_qp(pd, &plain);
        *cap = plain.cap;
    }
    return qp;
}

static void print_cap(const struct ibv_qp_cap *cap)
{
    printf(" %u %u %u %u %u", cap->max_send_wr, cap->max_recv_wr, cap->max_send_sge, cap->max_recv_sge,
           cap->max_inline_data);
}

static void sizes(unsigned count)
{
    static const unsigned lengths[] = {0, 1, 2, 3, 5, 31, 64, 100, 1000, 3000, 8192, 8193, 16384, 16385, 40000, 100000},
                          elements[] = {0, 1, 2, 3, 4, 5, 6, 7, 15, 16, 17, 31, 53, 70, ~0u},
                          bytes[] = {0, 1, 28, 29, 60, 61, 96, 97, 124, 300, 828, 829, 956, 988, 989, 1024, 1025, 5000};
    static const int queues[] = {-1, 0, 1, 2, 3, 4, 63, 64, 65, 100, 127, 128, 4095, 4096, 1 << 21, 1 << 22};
    for (unsigned at = 0; at < sizeof queues / sizeof *queues; at++) {
        errno = 0;
        struct ibv_cq *cq = ibv_create_cq(context, queues[at], NULL, NULL, 0);
        printf("completions %d: %d %s\n", queues[at], cq ? cq->cqe : 0, name(cq ? 0 : errno));
        if (cq && ibv_destroy_cq(cq))
            stop("a completion queue stays");
    }
    struct ibv_cq *cq = make_cq(64);
    for (unsigned at = 0; at < count; at++) {
        struct ibv_qp_cap cap = {PICK(lengths), PICK(lengths), PICK(elements), PICK(elements), PICK(bytes)};
        /* Most of the time all but one are usual ones. Once, sends have neither elements nor inline data. */
        if (!at)
            cap = (struct ibv_qp_cap){16, 16, 0, 1, 0};
        else if (below(4)) {
            struct ibv_qp_cap usual = {1 + below(200), 1 + below(200), 1 + below(4), 1 + below(4), below(200)};
            uint32_t *words = (uint32_t *)&usual, which = below(6);
            if (which < 5)
                words[which] = ((uint32_t *)&cap)[which];
            cap = usual;
        }
        uint64_t operations = at && below(2) ? 1 + below(127) : 0;
        int kind = below(4) ? IBV_QPT_RC : IBV_QPT_UC;
        printf("queue pair %d %lx:", kind, (long)operations);
        print_cap(&cap);
        struct ibv_qp *qp = create(cq, cq, &cap, kind, operations);
        printf(": %s", name(qp ? 0 : errno));
        if (qp) {
            struct ibv_qp_attr attr;
            struct ibv_qp_init_attr init;
            print_cap(&cap);
            int code = ibv_query_qp(qp, &attr, IBV_QP_CAP, &init);
            printf(", asked %s", name(code));
            print_cap(&attr.cap);
            print_cap(&init.cap);
            if (ibv_destroy_qp(qp))
                stop("a queue pair stays");
        }
        puts("");
    }
    if (ibv_destroy_cq(cq))
        stop("a completion queue stays");
}

struct side {
    struct ibv_cq *sends, *receives;
    struct ibv_qp *qp;
    struct ibv_qp_cap cap;
    int has_operations;
    char *seen[2];
    size_t length[2];
    FILE *log[2];
};

static const uint64_t ALL = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
                            IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ;

static void make(struct side *side, struct ibv_qp_cap cap, uint64_t operations)
{
    *side = (struct side){make_cq(500), make_cq(500)};
    side->cap = cap;
    side->has_operations = operations != 0;
    side->qp = create(side->sends, side->receives, &side->cap, IBV_QPT_RC, operations);
    if (!side->qp && operations) {
        printf("with operations: %s\n", name(errno));
        side->has_operations = 0, side->cap = cap;
        side->qp = create(side->sends, side->receives, &side->cap, IBV_QPT_RC, 0);
    }
    if (!side->qp)
        stop("no queue pair");
    for (int which = 0; which < 2; which++)
        side->log[which] = open_memstream(&side->seen[which], &side->length[which]);
}

static void destroy(struct side *side)
{
    for (int which = 0; which < 2; which++) {
        fclose(side->log[which]);
        free(side->seen[which]);
    }
    if (ibv_destroy_qp(side->qp) || ibv_destroy_cq(side->sends) || ibv_destroy_cq(side->receives))
        stop("an object stays");
}

static const int FULL = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

static void connect_both(struct side *sides, int access, int rnr_retry)
{
    for (int to = IBV_QPS_INIT; to <= IBV_QPS_RTS; to++)
        for (int at = 0; at < SIDES; at++)
            if (step(sides[at].qp, sides[!at].qp, to, access, rnr_retry))
                stop("not connected");
}

/* A field that nobody has written is printed as such. */
static void field(FILE *out, const char *what, unsigned value, size_t size)
{
    static const unsigned kept[] = {0, KEPT, KEPT << 8 | KEPT, 0, KEPT * 0x01010101u};
    if (value == kept[size])
        fprintf(out, " %s -", what);
    else
        fprintf(out, " %s %x", what, value);
}

/* A number of one of the queue pairs is printed as whose it is. */
static void number(FILE *out, const char *what, unsigned value, const struct side *side, const struct side *peer)
{
    if (value == side->qp->qp_num)
        fprintf(out, " %s own", what);
    else if (value == peer->qp->qp_num)
        fprintf(out, " %s peer", what);
    else
        field(out, what, value, sizeof value);
}

static void keep(FILE *out, const struct ibv_wc *wc, const struct side *side, const struct side *peer)
{
    int is_atomic = wc->opcode == IBV_WC_COMP_SWAP || wc->opcode == IBV_WC_FETCH_ADD;
    fprintf(out, "  %lx %s", (long)wc->wr_id, ibv_wc_status_str(wc->status));
    field(out, "opcode", wc->opcode, sizeof wc->opcode);
    field(out, "vendor", wc->vendor_err, sizeof wc->vendor_err);
    if (!is_unflushed || !is_atomic)
        field(out, "bytes", wc->byte_len, sizeof wc->byte_len);
    field(out, "imm", wc->imm_data, sizeof wc->imm_data);
    number(out, "qp", wc->qp_num, side, peer);
    number(out, "src", wc->src_qp, side, peer);
    field(out, "flags", wc->wc_flags, sizeof wc->wc_flags);
    field(out, "pkey", wc->pkey_index, sizeof wc->pkey_index);
    field(out, "slid", wc->slid, sizeof wc->slid);
    field(out, "sl", wc->sl, sizeof wc->sl);
    field(out, "path", wc->dlid_path_bits, sizeof wc->dlid_path_bits);
    fputs("\n", out);
}

/* Keeps what is there, of both queues; returns how many were found. `last`: one of them was this. */
static int drain(struct side *side, const struct side *peer, uint64_t last, int *is_last)
{
    int found = 0;
    for (int which = 0; which < 2; which++) {
        struct ibv_wc wc;
        memset(&wc, KEPT, sizeof wc);
        int count;
        while ((count = ibv_poll_cq(which ? side->receives : side->sends, 1, &wc)) == 1) {
            if (!is_unflushed || !which || wc.status != IBV_WC_WR_FLUSH_ERR)
                keep(side->log[which], &wc, side, peer);
            if (wc.wr_id == last)
                *is_last = 1;
            memset(&wc, KEPT, sizeof wc);
            found++;
        }
        if (count < 0 && !is_unflushed)
            stop("a poll fails");
    }
    return found;
}

static void await(struct side *side, const struct side *peer, uint64_t last)
{
    int is_last = 0;
    for (long spins = 0; !is_last; spins++) {
        drain(side, peer, last, &is_last);
        if (spins > 100000000)
            stop("no completion");
    }
}

static void refused(const char *what, int code, const void *bad, const void *first, size_t size)
{
    printf("%s: %s", what, name(code));
    if (code)
        printf(" at %ld", (long)(((const char *)bad - (const char *)first) / (long)size));
    puts("");
}

/* A WRITE of nothing, in one list with others. */
static int write_nothing(struct side *side, int count, uint64_t id, int flags)
{
    struct ibv_send_wr wr[8], *bad = NULL;
    for (int at = 0; at < count; at++)
        wr[at] = (struct ibv_send_wr){.wr_id = id + at, .next = at + 1 < count ? &wr[at + 1] : NULL,
                                      .opcode = IBV_WR_RDMA_WRITE, .send_flags = flags,
                                      .wr.rdma = {(uintptr_t)memory + HALF, mr->rkey}};
    int code = ibv_post_send(side->qp, wr, &bad);
    refused("send", code, bad, wr, sizeof *wr);
    return code;
}

static int receive_nothing(struct side *side, uint64_t id)
{
    struct ibv_recv_wr wr = {.wr_id = id}, *bad = NULL;
    int code = ibv_post_recv(side->qp, &wr, &bad);
    refused("receive", code, bad, &wr, sizeof wr);
    return code;
}

static void write_by_calls(struct side *side)
{
    if (!side->has_operations)
        return;
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(side->qp);
    ibv_wr_start(qp);
    qp->wr_id = 9, qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory + HALF);
    ibv_wr_set_sge_list(qp, 0, NULL);
    printf("by calls: %s\n", name(ibv_wr_complete(qp)));
}

static void print_sides(struct side *sides)
{
    for (int at = 0; at < SIDES; at++)
        for (int which = 0; which < 2; which++) {
            fflush(sides[at].log[which]);
            printf(" %c %s\n%s", "ab"[at], which ? "receives" : "sends", sides[at].seen[which]);
        }
}

/* What is taken in each state, reached on each way. */
static void states(void)
{
    /* No send fails before it is flushed. */
    ack_timeout = 20;
    static const int ways[][6] = {{0}, {1, 0}, {1, 2, 0}, {1, 2, 3, 0}, {1, 2, 3, 4, 0}, {1, 2, 3, 6, 0},
                                  {1, 2, 3, 4, 6, 0}, {6, 0}, {1, 6, 0}, {1, 2, 6, 0}};
    for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++)
        for (int is_reset = 0; is_reset < 2; is_reset++) {
            struct side sides[SIDES];
            for (int at = 0; at < SIDES; at++)
                make(&sides[at], (struct ibv_qp_cap){20, 20, 2, 1, INLINE}, ALL);
            printf("way %u:", way);
            if (is_reset) {
                connect_both(sides, FULL, 7);
                printf(" again:");
                step(sides[0].qp, sides[1].qp, IBV_QPS_RESET, FULL, 7);
            }
            for (int at = 0; ways[way][at]; at++)
                printf(" %d %s", ways[way][at], name(step(sides[0].qp, sides[1].qp, ways[way][at], FULL, 7)));
            puts("");
            int code = receive_nothing(&sides[0], 1);
            write_nothing(&sides[0], 2, 3, IBV_SEND_SIGNALED);
            write_by_calls(&sides[0]);
            struct ibv_ece ece = {0}, other = {0xf00d};
            printf("ece: %s", name(ibv_query_ece(sides[0].qp, &ece)));
            printf(" %x, back: %s", ece.options, name(ibv_set_ece(sides[0].qp, &ece)));
            printf(", another: %s\n", name(ibv_set_ece(sides[0].qp, &other)));
            /* Whatever was taken is flushed. */
            if (!code && ways[way][0]) {
                step(sides[0].qp, sides[1].qp, IBV_QPS_ERR, FULL, 7);
                await(&sides[0], &sides[1], 1);
            }
            print_sides(sides);
            for (int at = 0; at < SIDES; at++)
                destroy(&sides[at]);
        }
    ack_timeout = 8;
}

/* How much a queue takes before and after polls. */
static void fill(void)
{
    struct side sides[SIDES];
    for (int at = 0; at < SIDES; at++)
        make(&sides[at], (struct ibv_qp_cap){1 + below(20), 1 + below(20), 1, 1, 0}, 0);
    connect_both(sides, FULL, 7);
    uint64_t id = 0;
    for (int again = 0; again < 4; again++) {
        int count = 1 + below(5), left = below(3), none = 0;
        while (!write_nothing(&sides[0], count, id, below(3) ? IBV_SEND_SIGNALED : 0))
            id += count;
        id += count;
        for (struct ibv_wc wc; left && ibv_poll_cq(sides[0].sends, 1, &wc) == 1; left--)
            printf("polled %lx\n", (long)wc.wr_id);
        if (below(2))
            drain(&sides[0], &sides[1], 0, &none);
    }
    while (!receive_nothing(&sides[1], id))
        id++;
    step(sides[1].qp, sides[0].qp, IBV_QPS_ERR, FULL, 7);
    await(&sides[1], &sides[0], id - 1);
    print_sides(sides);
    for (int at = 0; at < SIDES; at++)
        destroy(&sides[at]);
}

/* How much queues take after they have been reset, with some sends polled and some not. */
static void refill(void)
{
    struct side sides[SIDES];
    for (int at = 0; at < SIDES; at++)
        make(&sides[at], (struct ibv_qp_cap){1 + below(20), 1 + below(20), 1, 1, 0}, 0);
    for (int again = 0; again < 4; again++) {
        connect_both(sides, FULL, 7);
        for (int id = 1 + below(40); id; id--)
            write_nothing(&sides[0], 1, id, below(2) ? IBV_SEND_SIGNALED : 0);
        for (int id = 1 + below(10); id; id--)
            receive_nothing(&sides[1], id);
        int left = below(3);
        for (struct ibv_wc wc; left && ibv_poll_cq(sides[0].sends, 1, &wc) == 1; left--)
            printf("polled %lx\n", (long)wc.wr_id);
        for (int at = 0; at < SIDES; at++)
            printf("to RESET: %s\n", name(step(sides[at].qp, sides[!at].qp, IBV_QPS_RESET, FULL, 7)));
    }
    for (int at = 0; at < SIDES; at++)
        destroy(&sides[at]);
}

/* Elements in one half. */
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

static int takes_receive(const struct ibv_send_wr *wr)
{
    return wr->opcode > IBV_WR_RDMA_WRITE && wr->opcode < IBV_WR_RDMA_READ;
}

static void post_receive(struct side *side, uint64_t id, int has_data, int is_wrong)
{
    struct ibv_sge place[ELEMENTS + 2];
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = place, .num_sge = below(side->cap.max_recv_sge + 1)}, *bad = NULL;
    if (has_data && !wr.num_sge)
        wr.num_sge = 1;
    elements(place, wr.num_sge, 1, 4000);
    if (wr.num_sge)
        place[wr.num_sge - 1].length = 6000;
    if (is_wrong && wr.num_sge)
        switch (below(3)) {
        case 0: place[0].lkey = closed->lkey; break;
        case 1: place[wr.num_sge - 1].length = 1; break;
        case 2: wr.num_sge = side->cap.max_recv_sge + 1;
        }
    int code = ibv_post_recv(side->qp, &wr, &bad);
    refused("receive", code, bad, &wr, sizeof wr);
    if (code && wr.num_sge) {
        wr.num_sge = 0;
        refused("without elements", ibv_post_recv(side->qp, &wr, &bad), bad, &wr, sizeof wr);
    }
}

static void spoil(struct ibv_send_wr *wr, struct ibv_sge *sge, const struct side *side)
{
    switch (below(10)) {
    case 0: sge[0] = (struct ibv_sge){(uintptr_t)memory, 8, 0xdead00}, wr->num_sge = wr->num_sge ? wr->num_sge : 1; break;
    case 1: wr->wr.rdma.rkey ^= 0x5500; break;
    case 2: wr->wr.rdma.rkey = closed->rkey; break;
    case 3: wr->wr.rdma.remote_addr = (uintptr_t)memory + REGION - 4; break;
    case 4: wr->num_sge = side->cap.max_send_sge + 1; break;
    case 5:
        sge[0] = (struct ibv_sge){(uintptr_t)memory, side->cap.max_inline_data + 1, mr->lkey};
        wr->send_flags |= IBV_SEND_INLINE, wr->num_sge = 1;
        break;
    case 6: wr->opcode = 77; break;
    case 7: wr->send_flags |= 1 << 20; break;
    case 8: wr->send_flags |= IBV_SEND_IP_CSUM; break;
    case 9: sge[0] = (struct ibv_sge){(uintptr_t)memory + REGION - 8, 16, mr->lkey}, wr->num_sge = 1;
    }
}

/* How many it posts. */
static int chain(struct side *side, struct side *peer, uint64_t id)
{
    struct ibv_sge sge[CHAIN][ELEMENTS + 8];
    struct ibv_send_wr wr[CHAIN], *bad = NULL;
    int count = 1 + below(CHAIN), wrong = below(12);
    memset(sge, 0, sizeof sge);
    for (int i = 0; i < count; i++) {
        wr[i] = (struct ibv_send_wr){.wr_id = id + i, .next = i + 1 == count ? NULL : &wr[i + 1], .sg_list = sge[i],
                                     .opcode = below(is_careful ? 6 : 7), .imm_data = below(1 << 30),
                                     .send_flags = below(3) || is_careful || is_unflushed ? IBV_SEND_SIGNALED : 0};
        if (!below(5))
            wr[i].send_flags |= IBV_SEND_FENCE;
        int is_read = wr[i].opcode == IBV_WR_RDMA_READ, is_inline = wr[i].opcode < IBV_WR_RDMA_READ && below(2);
        if (wr[i].opcode > IBV_WR_RDMA_READ) {
            sge[i][0] = (struct ibv_sge){(uintptr_t)memory + HALF + 8 * below(64), 8, mr->lkey};
            wr[i].num_sge = 1;
            wr[i].wr.atomic.remote_addr = (uintptr_t)memory + HALF + HALF / 2 + 8 * below(64);
            wr[i].wr.atomic.rkey = mr->rkey, wr[i].wr.atomic.compare_add = below(3), wr[i].wr.atomic.swap = below(3);
            continue;
        }
        /* At least one element in a READ: liberdma reads it without looking. */
        wr[i].num_sge = is_read ? 1 : below(side->cap.max_send_sge + 1);
        if (is_careful && is_inline && wr[i].num_sge > 1)
            wr[i].num_sge = 1;
        elements(sge[i], wr[i].num_sge, is_read, is_inline ? side->cap.max_inline_data : 4000);
        if (is_inline)
            wr[i].send_flags |= IBV_SEND_INLINE;
        wr[i].wr.rdma.remote_addr = (uintptr_t)memory + (is_read ? 0 : HALF) + below(HALF / 2);
        wr[i].wr.rdma.rkey = mr->rkey;
        if (takes_receive(&wr[i]))
            post_receive(peer, ~(id + i) & 0xfffff, wr[i].opcode >= IBV_WR_SEND, !below(40));
        if (!wrong)
            spoil(&wr[i], sge[i], side);
    }
    int code = ibv_post_send(side->qp, wr, &bad);
    refused("sends", code, bad, wr, sizeof *wr);
    return code ? bad - wr : count;
}

static void round_of_requests(int at)
{
    struct side sides[SIDES];
    int access = below(8) ? FULL : below(2) ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    for (int one = 0; one < SIDES; one++)
        make(&sides[one], (struct ibv_qp_cap){200, 200, 1 + below(ELEMENTS), 1, INLINE}, 0);
    /* Where each completion is awaited, no send may wait for a receive for ever. */
    connect_both(sides, access, below(3) && !is_careful ? 7 : 1);
    printf("round %d\n", at);
    /* As many in any case: when a failure shows depends on time. */
    for (int step = 0; step < 10; step++) {
        int side = below(SIDES), none = 0;
        int posted = chain(&sides[side], &sides[!side], 16 * step);
        /* Such a library refuses requests from the first failure on that it has reported. */
        if (is_careful && posted)
            await(&sides[side], &sides[!side], 16 * step + posted - 1);
        for (int one = 0; one < SIDES; one++)
            drain(&sides[one], &sides[!one], 0, &none);
    }
    for (int one = 0; one < SIDES; one++)
        if (!write_nothing(&sides[one], 1, SENT_LAST, IBV_SEND_SIGNALED))
            await(&sides[one], &sides[!one], SENT_LAST);
    for (int one = 0; one < SIDES; one++) {
        int code = receive_nothing(&sides[one], RECEIVED_LAST);
        printf("to ERR: %s\n", name(step(sides[one].qp, sides[!one].qp, IBV_QPS_ERR, FULL, 7)));
        if (!code && !is_unflushed)
            await(&sides[one], &sides[!one], RECEIVED_LAST);
        write_nothing(&sides[one], 1, SENT_LAST + 1, 0);
        receive_nothing(&sides[one], RECEIVED_LAST + 1);
    }
    for (int one = 0, none; one < SIDES; one++)
        drain(&sides[one], &sides[!one], 0, &none);
    print_sides(sides);
    unsigned sum = 0;
    for (unsigned byte = 0; byte < REGION; byte++)
        sum = sum * 31 + memory[byte];
    printf("memory %x\n", sum);
    for (int one = 0; one < SIDES; one++)
        destroy(&sides[one]);
}

int main(int count, char **words)
{
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    if (count < 3 || !list || !devices)
        stop("truths SEED ROUNDS [careful | unflushed], and a device");
    is_careful = count > 3 && !strcmp(words[3], "careful");
    is_unflushed = count > 3 && !strcmp(words[3], "unflushed");
    state = strtoull(words[1], NULL, 0);
    context = ibv_open_device(list[0]);
    pd = context ? ibv_alloc_pd(context) : NULL;
    mr = pd ? ibv_reg_mr(pd, memory, REGION, FULL | IBV_ACCESS_LOCAL_WRITE) : NULL;
    closed = mr ? ibv_reg_mr(pd, memory, REGION, 0) : NULL;
    if (!closed)
        stop("no objects");
    for (unsigned at = 0; at < REGION; at++)
        memory[at] = below(256);
    sizes(300);
    states();
    for (int at = 0; at < 20; at++)
        fill();
    for (int at = 0; at < 20 && !is_careful; at++)
        refill();
    for (int at = 0; at < atoi(words[2]); at++)
        round_of_requests(at);
    if (ibv_dereg_mr(closed) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) || ibv_close_device(context))
        stop("an object stays");
    ibv_free_device_list(list);
    puts("end");
    return 0;
}
