/* What the parts of the transfer share; transfer.c says what it is. */

#ifndef TRAINSHED_TRANSFER_H
#define TRAINSHED_TRANSFER_H

#include "frames.h"
#include "poller.h"

struct frame {
    struct header header;
    const uint8_t *payload;
    uint8_t *target;
    double row;
};

/* A lane's frames have positions from `first` on: those below `sent` have gone out, that at `sent` is on its way if
 * `offset` is not 0; `due` is the oldest whose result is still to come, or `pushed`. What is below both is released. */
struct lane {
    int handle; /* -1: none */
    bool readable, writable;
    int broken; /* why nothing can be sent any more; what came before is read first */
    struct frame *frames; /* a ring, by position */
    size_t room;          /* a power of two, or 0 */
    uint64_t first, sent, due, pushed;
    size_t offset;        /* of the frame at `sent`, its header included */
    uint64_t outstanding; /* bytes of frames that have begun and whose results are due */
    struct incoming incoming;
    double whole_by; /* how long the whole of the incoming result is waited for; 0: it is not */
    uint8_t *scratch;
    size_t scratch_room;
};

/* Frames of one operation whose results are not here yet. */
struct pending {
    uint64_t operation, frames;
};

struct transfer {
    struct poller poller;
    uint32_t count;
    uint64_t credit, outstanding;
    struct lane *lanes;
    struct pending *pending;
    size_t pendings, pending_room;
    bool urgent; /* there are events that somebody waits for */
    struct report report; /* of the run under way */
};

static inline struct frame *frame_at(const struct lane *lane, uint64_t position)
{
    return &lane->frames[position & (lane->room - 1)];
}

static inline uint32_t index_of(const struct transfer *t, const struct lane *lane)
{
    return (uint32_t)(lane - t->lanes);
}

/* ---- lanes.c ---- */

/* Of an operation's frames whose results are not here yet, one more; false: no memory. */
bool pending_add(struct transfer *t, uint64_t operation);
/* One less; whether it was the last. */
bool pending_done(struct transfer *t, uint64_t operation);
/* After `due` or `sent` has moved. */
void lane_release(struct lane *lane);
void lane_detach(struct transfer *t, struct lane *lane);
/* Tells the cause, an errno or 0, and detaches. */
void lane_lose(struct transfer *t, struct lane *lane, int error);
struct event *tell(struct transfer *t, enum event_kind kind, const struct lane *lane, uint64_t position);

/* ---- receiving.c, sending.c: whether anything moved ---- */

/* Until when the next lane waits for the whole of a result; those whose time is over become readable. */
double await_whole(struct transfer *t);

bool receive_all(struct transfer *t);
bool send_all(struct transfer *t);

#endif
