/* From the sockets into the targets. */

#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Reads from one lane until others have their turn. */
#define TURN 8

/* What one call of incoming_read is for. */
struct reading {
    struct transfer *transfer;
    struct lane *lane;
};

/* Whether the incoming header may be followed; if not, the lane is lost. */
static bool begin(void *whose)
{
    struct reading *reading = whose;
    struct transfer *t = reading->transfer;
    struct lane *lane = reading->lane;
    const struct header *in = &lane->incoming.header;
    bool good = memcmp(in->magic, MAGIC, sizeof in->magic) == 0;
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
        good = good && is_short(in);
    }
    if (!good) {
        report_text(&t->report, tell(t, EVENT_MALFORMED, lane, due), in, HEADER);
        lane_detach(t, lane);
        return false;
    }
    if (in->nbytes > lane->scratch_room) {
        uint8_t *grown = realloc(lane->incoming.payload, in->nbytes);
        if (!grown) {
            lane_lose(t, lane, ENOMEM);
            return false;
        }
        lane->incoming.payload = grown;
        lane->scratch_room = in->nbytes;
    }
    return true;
}

/* A whole frame is in. */
static bool deliver(void *whose)
{
    struct reading *reading = whose;
    struct transfer *t = reading->transfer;
    struct lane *lane = reading->lane;
    const struct header *in = &lane->incoming.header;
    if (in->kind == RESULT) {
        memcpy(frame_at(lane, lane->due)->target, lane->incoming.payload, in->nbytes);
        lane->outstanding -= in->nbytes;
        t->outstanding -= in->nbytes;
        tell(t, EVENT_RESULT, lane, lane->due)->acknowledged = in->acknowledged;
        lane->due++;
        lane_release(lane);
        if (pending_done(t, in->operation))
            t->urgent = true;
    } else {
        struct event *event = tell(t, EVENT_MESSAGE, lane, 0);
        report_text(&t->report, event, in, HEADER);
        report_text(&t->report, event, lane->incoming.payload, in->nbytes);
    }
    return true;
}

/* Reads some; false if nothing came. */
static bool receive(struct transfer *t, struct lane *lane)
{
    struct reading reading = {t, lane};
    ssize_t done = incoming_read(&lane->incoming, lane->handle, begin, deliver, &reading);
    if (done > 0)
        return true;
    if (done < 0 && done != -EAGAIN) {
        lane_lose(t, lane, (int)-done);
    } else if (done == 0 || lane->broken) {
        lane_lose(t, lane, done < 0 ? lane->broken : 0);
    } else {
        lane->readable = false;
        poller_again(&t->poller, index_of(t, lane), true, false);
    }
    return false;
}

bool receive_all(struct transfer *t)
{
    bool moved = false;
    for (uint32_t i = 0; i < t->count; i++) {
        struct lane *lane = &t->lanes[i];
        for (int turn = 0; turn < TURN && lane->handle >= 0 && lane->readable && !report_is_full(&t->report); turn++)
            moved |= receive(t, lane);
    }
    return moved;
}
