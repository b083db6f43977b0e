/*
 * The part of transfer.py in C. It moves a worker's frames without Python's interpreter lock.
 *
 * The same thread must call all functions except transfer_wake. The caller owns the memory of payloads and targets. The
 * memory must stay valid until the frame is released (transfer_released) or dropped (attach, detach, a lost
 * connection).
 */

#define _GNU_SOURCE
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Maximum delay in seconds of reports about unfinished operations. Reports are delayed because each one may have to
 * wait for Python's interpreter lock, and no bytes move in the meantime. */
#define REPORT_DELAY 0.1

EXPORT void transfer_free(struct transfer *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->count; i++) {
        free(t->lanes[i].frames);
        free(t->lanes[i].scratch);
    }
    poller_close(&t->poller);
    free(t->lanes);
    free(t->pending);
    free(t);
}

/* Returns NULL if no memory or no file descriptor is available. */
EXPORT struct transfer *transfer_new(uint32_t lanes, uint64_t credit)
{
    struct transfer *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->credit = credit;
    t->lanes = calloc(lanes ? lanes : 1, sizeof *t->lanes);
    bool open = poller_open(&t->poller);
    if (!open || !t->lanes) {
        transfer_free(t);
        return NULL;
    }
    t->count = lanes;
    for (uint32_t i = 0; i < lanes; i++)
        t->lanes[i].handle = -1;
    return t;
}

EXPORT void transfer_detach(struct transfer *t, uint32_t index)
{
    lane_detach(t, &t->lanes[index]);
}

/* Returns 0 or an errno. */
EXPORT int transfer_attach(struct transfer *t, uint32_t index, int handle, uint64_t position)
{
    struct lane *lane = &t->lanes[index];
    lane_detach(t, lane);
    if (!poller_add(&t->poller, index, handle))
        return errno;
    lane->handle = handle;
    lane->readable = lane->writable = false;
    lane->first = lane->sent = lane->due = lane->pushed = position;
    return 0;
}

/* Queues a frame. Returns 0 or an errno. `header`: HEADER bytes. `target`: NULL if no result will arrive for the
 * frame. Does nothing if the lane has no connection. */
EXPORT int transfer_push(struct transfer *t, uint32_t index, const void *header, const uint8_t *payload,
                         uint8_t *target, double row)
{
    struct lane *lane = &t->lanes[index];
    if (lane->handle < 0)
        return 0;
    if (lane->pushed - lane->first == lane->room) {
        size_t room = lane->room ? 2 * lane->room : 16;
        struct frame *grown = malloc(room * sizeof *grown);
        if (!grown)
            return ENOMEM;
        for (uint64_t p = lane->first; p < lane->pushed; p++)
            grown[p & (room - 1)] = *frame_at(lane, p);
        free(lane->frames);
        lane->frames = grown;
        lane->room = room;
    }
    struct frame *frame = frame_at(lane, lane->pushed);
    memcpy(&frame->header, header, HEADER);
    frame->payload = payload;
    frame->target = target;
    frame->row = row;
    if (target && !pending_add(t, frame->header.operation))
        return ENOMEM;
    lane->pushed++;
    lane_release(lane);
    return 0;
}

/* Returns the number of events. */
EXPORT int transfer_run(struct transfer *t, double seconds, struct event *events, int capacity, char *text,
                        size_t text_room)
{
    double deadline = now() + seconds, until = deadline;
    bool woken = false, moved = true;
    t->report = (struct report){.events = events, .capacity = capacity, .text = text, .text_room = text_room};
    t->urgent = false;
    for (;;) {
        struct ready ready[MAX_READY];
        double left = moved ? 0 : least(least(until, await_whole(t)) - now(), 60);
        int found = poller_wait(&t->poller, left > 0 ? (int)(left * 1000) + 1 : 0, ready, &woken);
        for (int i = 0; i < found; i++) {
            struct lane *lane = &t->lanes[ready[i].index];
            lane->readable |= ready[i].readable;
            lane->writable |= ready[i].writable && !lane->broken;
        }
        await_whole(t);
        moved = send_all(t);
        moved |= receive_all(t);
        bool first = t->report.filled && until == deadline;
        double at = now();
        if (first)
            until = least(deadline, at + REPORT_DELAY);
        if (woken || t->urgent || report_is_full(&t->report) || at >= until)
            return t->report.filled;
    }
}

/* Returns the first position whose frame is still in use. */
EXPORT uint64_t transfer_released(const struct transfer *t, uint32_t index)
{
    return t->lanes[index].first;
}

/* Returns the number of frames that are not completely sent. */
EXPORT uint64_t transfer_unsent(const struct transfer *t)
{
    uint64_t frames = 0;
    for (uint32_t i = 0; i < t->count; i++)
        frames += t->lanes[i].pushed - t->lanes[i].sent;
    return frames;
}

/* May be called from any thread. */
EXPORT void transfer_wake(struct transfer *t)
{
    poller_wake(&t->poller);
}
