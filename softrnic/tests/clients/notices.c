/* Prints which notifications of completions and which asynchronous events a program gets of the first device, and of
   which object. Faults are injected by rules that apply to the fifth, the sixth and the seventh message of a
   connection, once each: a failing queue pair, a port that is down for a while, a failing device.

   notices */

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "steps.h"

static char memory[64];
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq *sends, *receives;

static void connected(struct ibv_qp *pair[2])
{
    struct ibv_qp_init_attr init = {.send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
    for (int at = 0; at < 2; at++)
        if (!(pair[at] = ibv_create_qp(pd, &init)))
            stop("no queue pair");
    for (int to = IBV_QPS_INIT; to <= IBV_QPS_RTS; to++)
        for (int at = 0; at < 2; at++)
            if (step(pair[at], pair[!at], to, IBV_ACCESS_REMOTE_WRITE, 7))
                stop("not connected");
}

static void receive(struct ibv_qp *qp)
{
    struct ibv_sge place = {(uintptr_t)memory, 32, mr->lkey};
    struct ibv_recv_wr take = {.sg_list = &place, .num_sge = 1}, *bad;
    if (ibv_post_recv(qp, &take, &bad))
        stop("no receive");
}

static void send(struct ibv_qp *qp, int flags)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .send_flags = flags}, *bad;
    if (ibv_post_send(qp, &wr, &bad))
        stop("no send");
}

static int drain(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int found = 0;
    while (ibv_poll_cq(cq, 1, &wc) == 1)
        found++;
    return found;
}

static void block(int fd, int does)
{
    fcntl(fd, F_SETFL, does ? 0 : O_NONBLOCK);
}

/* The next notification. One that nothing stands behind would come at once, as all of this does. */
static void notified(int is_there)
{
    struct ibv_cq *cq;
    void *word;
    block(channel->fd, is_there);
    if (ibv_get_cq_event(channel, &cq, &word)) {
        printf("no notification: %s\n", errno == EAGAIN ? "EAGAIN" : "another error");
        return;
    }
    printf("notified: of %s, word %ld\n", cq == sends ? "sends" : cq == receives ? "receives" : "others", (long)word);
    ibv_ack_cq_events(cq, 1);
}

static void arm(struct ibv_cq *cq, int is_solicited)
{
    if (ibv_req_notify_cq(cq, is_solicited))
        stop("not armed");
}

static void event(struct ibv_qp *pair[2])
{
    struct ibv_async_event event;
    if (ibv_get_async_event(context, &event))
        stop("no event");
    printf("event: %s", ibv_event_type_str(event.event_type));
    if (event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE)
        printf(", port %d", event.element.port_num);
    else if (event.event_type != IBV_EVENT_DEVICE_FATAL)
        printf(", queue pair %s", event.element.qp == pair[0] ? "0" : event.element.qp == pair[1] ? "1" : "?");
    puts("");
    ibv_ack_async_event(&event);
}

static void messages(struct ibv_qp *pair[2], int count)
{
    for (int at = 0; at < count; at++) {
        receive(pair[1]);
        send(pair[0], IBV_SEND_SIGNALED);
    }
}

int main(void)
{
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    struct ibv_qp *pair[2];
    alarm(60);
    context = list && devices ? ibv_open_device(list[0]) : NULL;
    pd = context ? ibv_alloc_pd(context) : NULL;
    mr = pd ? ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) : NULL;
    /* One that is closed before, and its number given out again. */
    channel = mr ? ibv_create_comp_channel(context) : NULL;
    if (!channel || ibv_destroy_comp_channel(channel))
        stop("no channel, or one that stays");
    channel = ibv_create_comp_channel(context);
    sends = ibv_create_cq(context, 64, (void *)1, channel, 0);
    receives = ibv_create_cq(context, 64, (void *)2, channel, 0);
    if (!channel || !sends || !receives)
        stop("no objects");
    connected(pair);
    puts("not armed");
    messages(pair, 1);
    printf("found %d and %d\n", drain(sends), drain(receives));
    puts("armed");
    arm(sends, 0);
    messages(pair, 1);
    notified(1);
    printf("found %d and %d\n", drain(sends), drain(receives));
    puts("for solicited messages");
    arm(receives, 1);
    receive(pair[1]), receive(pair[1]);
    send(pair[0], 0);
    send(pair[0], IBV_SEND_SOLICITED);
    notified(1);
    notified(0);
    printf("found %d and %d\n", drain(sends), drain(receives));
    puts("one that nobody reads");
    for (int at = 0; at < 2; at++)
        ibv_destroy_qp(pair[at]);
    connected(pair);
    arm(sends, 0);
    messages(pair, 2);
    arm(receives, 0);
    messages(pair, 0);
    printf("destroyed: %d", ibv_destroy_qp(pair[0]));
    printf(" %d", ibv_destroy_qp(pair[1]));
    printf(" %d\n", ibv_destroy_cq(sends));
    notified(0);
    sends = ibv_create_cq(context, 64, (void *)1, channel, 0);
    puts("a queue pair fails");
    connected(pair);
    messages(pair, 5);
    event(pair);
    ibv_destroy_qp(pair[0]), ibv_destroy_qp(pair[1]);
    puts("a port is down");
    connected(pair);
    messages(pair, 6);
    event(pair);
    event(pair);
    ibv_destroy_qp(pair[0]), ibv_destroy_qp(pair[1]);
    puts("the device fails");
    connected(pair);
    messages(pair, 7);
    event(pair);
    printf("another queue: %s\n", ibv_create_cq(context, 64, NULL, NULL, 0) ? "made" : "refused");
    puts("end");
    return 0;
}
