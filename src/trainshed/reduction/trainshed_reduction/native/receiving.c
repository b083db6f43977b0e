/* From the sockets into the targets. */

#define _GNU_SOURCE
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Reads from one lane until others have their turn. */
#define TURN 8

/* wire._LIMITS, by kind. */
static const uint16_t limits[LAST_KIND + 1] = {0, 32, 512, 1024, TEXT, 64, 0, 0, 0, TEXT, TEXT, 0};

/* Whether the incoming header may be followed; if not, the lane is lost. */
static bool check_header(struct transfer *t, struct lane *lane)
{
    const struct header *in = &lane->incoming;
    bool good = memcmp(in->magic, "TSR2", 4) == 0;
    uint64_t due = ~(uint64_t)0;
    if (in->kind == RESULT) {
        good = good && lane->due < lane->sent;
        if (lane->due < lane->sent) {
            const struct header *out = &frame_at(lane, lane->due)->header;
            due = lane->due;
            good = good && in->dtype == out->dtype && in->reduction == out->reduction && in->chunk == out->chunk &&
                   in->operation == out->operation && in->total == out->total && in->step == out->step &&
                   in->nbytes == out->nbytes;
        }
    } else {
        good = good && in->kind > 0 && in->kind <= LAST_KIND && in->kind != DATA && in->kind != FINAL &&
               in->nbytes <= limits[in->kind];
    }
    if (!good) {
        tell_text(t, tell(t, EVENT_MALFORMED, lane, due), in, HEADER);
        lane_detach(t, lane);
        return false;
    }
    if (in->nbytes > lane->scratch_room) {
        uint8_t *grown = realloc(lane->scratch, in->nbytes);
        if (!grown) {
            lane_lose(t, lane, ENOMEM);
            return false;
        }
        lane->scratch = grown;
        lane->scratch_room = in->nbytes;
    }
    return true;
}

/* A whole frame is in. */
static void deliver(struct transfer *t, struct lane *lane)
{
    const struct header *in = &lane->incoming;
    if (in->kind == RESULT) {
        memcpy(frame_at(lane, lane->due)->target, lane->scratch, in->nbytes);
        lane->outstanding -= in->nbytes;
        t->outstanding -= in->nbytes;
        tell(t, EVENT_RESULT, lane, lane->due)->acknowledged = in->acknowledged;
        lane->due++;
        lane_release(lane);
        if (pending_done(t, in->operation))
            t->urgent = true;
    } else {
        struct event *event = tell(t, EVENT_MESSAGE, lane, 0);
        tell_text(t, event, in, HEADER);
        if (in->nbytes)
            tell_text(t, event, lane->scratch, in->nbytes);
    }
}

/* Reads some; false if nothing came. A payload is read together with the header after it. */
static bool receive(struct transfer *t, struct lane *lane)
{
    struct header next;
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1};
    bool in_payload = lane->got >= HEADER;
    size_t wanted = HEADER - lane->got;
    if (in_payload) {
        size_t have = lane->got - HEADER;
        wanted = lane->incoming.nbytes - have;
        parts[0] = (struct iovec){lane->scratch + have, wanted};
        parts[1] = (struct iovec){&next, HEADER};
        message.msg_iovlen = 2;
    } else {
        parts[0] = (struct iovec){(uint8_t *)&lane->incoming + lane->got, wanted};
    }
    ssize_t done = recvmsg(lane->handle, &message, MSG_DONTWAIT);
    if (done <= 0) {
        if (done < 0 && errno == EINTR)
            return true;
        if (done == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
            lane_lose(t, lane, done < 0 ? errno : 0);
        } else if (lane->broken) {
            lane_lose(t, lane, lane->broken);
        } else {
            lane->readable = false;
            poller_again(&t->poller, index_of(t, lane), true, false);
        }
        return false;
    }
    lane->got += (size_t)done;
    if ((size_t)done < wanted)
        return true;
    if (in_payload) {
        deliver(t, lane);
        lane->got = (size_t)done - wanted;
        lane->incoming = next;
    }
    /* A frame without a payload ends with its header, and what was read has no more than one. */
    if (lane->got == HEADER && check_header(t, lane) && !lane->incoming.nbytes) {
        deliver(t, lane);
        lane->got = 0;
    }
    return true;
}

bool receive_all(struct transfer *t)
{
    bool moved = false;
    for (uint32_t i = 0; i < t->count; i++) {
        struct lane *lane = &t->lanes[i];
        for (int turn = 0; turn < TURN && lane->handle >= 0 && lane->readable && !is_full(t); turn++)
            moved |= receive(t, lane);
    }
    return moved;
}
