/* Receives results from the sockets into their targets. */

#define _GNU_SOURCE
#include "transfer.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* Maximum number of reads from one lane before other lanes have their turn. */
#define READS_PER_TURN 8
/* Seconds to wait for a whole result. Then it is read in parts, because the system's buffers may be too small for
 * it. */
#define WHOLE_TIMEOUT 0.05

/* The context of a call of incoming_read. */
struct reading {
    struct transfer *transfer;
    struct lane *lane;
};

/* Whether a header belongs to the result of the oldest sent chunk without a result. */
static bool is_due(const struct lane *lane, const struct header *in)
{
    /* `due` may be beyond `sent`, because frames with known results are skipped. */
    if (in->kind != RESULT || !is_chunk(in) || lane->due >= lane->sent)
        return false;
    const struct header *out = &frame_at(lane, lane->due)->header;
    return in->dtype == out->dtype && in->reduction == out->reduction && in->chunk == out->chunk &&
           in->operation == out->operation && in->total == out->total && in->step == out->step;
}

/* Checks the header of an incoming frame. If it is invalid, returns false, and the lane is lost. */
static bool begin(void *whose)
{
    struct reading *reading = whose;
    struct transfer *t = reading->transfer;
    struct lane *lane = reading->lane;
    const struct header *in = &lane->incoming.header;
    if (!is_short(in) && !is_due(lane, in)) {
        report_event(t, EVENT_VIOLATION, lane, 0);
        lane_detach(t, lane);
        return false;
    }
    lane->whole_by = 0;
    lane->incoming.payload = NULL;
    return true;
}

/* Whether the peer will send no more data. The system reports this only once. */
static bool has_ended(int handle)
{
    struct pollfd one = {.fd = handle, .events = POLLRDHUP};
    return poll(&one, 1, 0) > 0;
}

/* Chooses the memory for a payload: the target if the whole payload has arrived, otherwise a buffer of the lane. The
 * target contains the rank's input, which is sent again if the connection breaks. Therefore a part of a result must
 * not overwrite it. Returns 0 or an errno; EAGAIN: wait for the rest of the payload. */
static int take_place(struct lane *lane)
{
    uint32_t nbytes = lane->incoming.header.nbytes;
    if (lane->incoming.header.kind == RESULT) {
        if (incoming_is_whole(&lane->incoming, lane->handle)) {
            lane->incoming.payload = frame_at(lane, lane->due)->target;
            return 0;
        }
        if (!lane->whole_by && !has_ended(lane->handle)) {
            lane->whole_by = now() + WHOLE_TIMEOUT;
            return EAGAIN;
        }
    }
    if (nbytes > lane->scratch_room) {
        uint8_t *grown = realloc(lane->scratch, nbytes);
        if (!grown)
            return ENOMEM;
        lane->scratch = grown;
        lane->scratch_room = nbytes;
    }
    lane->incoming.payload = lane->scratch;
    return 0;
}

/* Delivers a complete frame. */
static bool deliver(void *whose)
{
    struct reading *reading = whose;
    struct transfer *t = reading->transfer;
    struct lane *lane = reading->lane;
    const struct header *in = &lane->incoming.header;
    if (in->kind == RESULT) {
        if (lane->incoming.payload == lane->scratch)
            memcpy(frame_at(lane, lane->due)->target, lane->scratch, in->nbytes);
        lane->outstanding -= in->nbytes;
        t->outstanding -= in->nbytes;
        report_event(t, EVENT_RESULT, lane, lane->due)->acknowledged = in->acknowledged;
        lane->due++;
        lane_release(lane);
        if (pending_done(t, in->operation))
            t->urgent = true;
    } else {
        struct event *event = report_event(t, EVENT_MESSAGE, lane, 0);
        report_text(&t->report, event, in, HEADER);
        if (in->nbytes)
            report_text(&t->report, event, lane->scratch, in->nbytes);
    }
    return true;
}

/* Reads available data. Returns false if no data is available. */
static bool receive(struct transfer *t, struct lane *lane)
{
    struct reading reading = {t, lane};
    ssize_t done = lane->incoming.got == HEADER && !lane->incoming.payload ? -take_place(lane) : 0;
    if (!done)
        done = incoming_read(&lane->incoming, lane->handle, begin, deliver, &reading);
    if (done > 0)
        return true;
    if (done < 0 && done != -EAGAIN) {
        lane_lose(t, lane, (int)-done);
    } else if (done == 0 || lane->broken) {
        lane_lose(t, lane, done < 0 ? lane->broken : 0);
    } else {
        lane->readable = false;
    }
    return false;
}

double await_whole(struct transfer *t)
{
    double first = NEVER;
    for (uint32_t i = 0; i < t->count; i++) {
        struct lane *lane = &t->lanes[i];
        bool awaits = lane->whole_by && !lane->readable && !lane->incoming.payload;
        if (lane->handle < 0 || !awaits)
            continue;
        lane->readable = now() >= lane->whole_by;
        first = least(first, lane->whole_by);
    }
    return first;
}

bool receive_all(struct transfer *t)
{
    bool moved = false;
    for (uint32_t i = 0; i < t->count; i++) {
        struct lane *lane = &t->lanes[i];
        for (int turn = 0; turn < READS_PER_TURN && lane->handle >= 0 && lane->readable && !report_is_full(&t->report); turn++)
            moved |= receive(t, lane);
    }
    return moved;
}
