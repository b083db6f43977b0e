/* Manages the frames of a lane and reports their events. */

#include "transfer.h"

#include <stdlib.h>

bool pending_add(struct transfer *t, uint64_t operation)
{
    for (size_t i = t->pendings; i-- > 0;)
        if (t->pending[i].operation == operation) {
            t->pending[i].frames++;
            return true;
        }
    if (t->pendings == t->pending_room) {
        size_t room = t->pending_room ? 2 * t->pending_room : 16;
        struct pending *grown = realloc(t->pending, room * sizeof *grown);
        if (!grown)
            return false;
        t->pending = grown;
        t->pending_room = room;
    }
    t->pending[t->pendings++] = (struct pending){operation, 1};
    return true;
}

bool pending_done(struct transfer *t, uint64_t operation)
{
    for (size_t i = 0; i < t->pendings; i++)
        if (t->pending[i].operation == operation) {
            if (--t->pending[i].frames)
                return false;
            t->pending[i] = t->pending[--t->pendings];
            return true;
        }
    return true;
}

void lane_detach(struct transfer *t, struct lane *lane)
{
    if (lane->handle >= 0)
        poller_remove(&t->poller, lane->handle);
    lane->handle = -1;
    lane->broken = 0;
    for (uint64_t p = lane->due; p < lane->pushed; p++)
        if (frame_at(lane, p)->target)
            pending_done(t, frame_at(lane, p)->header.operation);
    lane->first = lane->sent = lane->due = lane->pushed;
    t->outstanding -= lane->outstanding;
    lane->outstanding = 0;
    lane->offset = 0;
    lane->incoming = (struct incoming){0};
    lane->whole_by = 0;
    free(lane->scratch);
    lane->scratch = NULL;
    lane->scratch_room = 0;
}

struct event *report_event(struct transfer *t, enum event_kind kind, const struct lane *lane, uint64_t position)
{
    if (kind != EVENT_RESULT)
        t->urgent = true;
    return report_add(&t->report, kind, index_of(t, lane), position);
}

void lane_lose(struct transfer *t, struct lane *lane, int error)
{
    report_event(t, EVENT_LOST, lane, (uint64_t)error);
    lane_detach(t, lane);
}

void lane_release(struct lane *lane)
{
    while (lane->due < lane->pushed && !frame_at(lane, lane->due)->target)
        lane->due++;
    lane->first = lane->sent < lane->due ? lane->sent : lane->due;
}
