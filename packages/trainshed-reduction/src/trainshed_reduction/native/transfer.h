/* Declarations that the files of the transfer share. transfer.c describes the transfer. */

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

/* A lane's frames have positions from `first` on. Frames below `sent` are completely sent. The frame at `sent` is
 * partly sent if `offset` is not 0. `due` is the position of the oldest frame without a result, or `pushed`. Frames
 * below both `sent` and `due` are released. */
struct lane {
    int handle; /* -1: none */
    bool readable, writable;
    int broken; /* errno of a failed send: nothing more is sent, but received data is still read */
    struct frame *frames; /* a ring buffer, by position */
    size_t room;          /* a power of two, or 0 */
    uint64_t first, sent, due, pushed;
    size_t offset;        /* bytes of the frame at `sent` that are sent, including its header */
    uint64_t outstanding; /* bytes of started frames without a result */
    struct incoming incoming;
    double whole_by; /* time until which to wait for the whole incoming result; 0: no wait */
    uint8_t *scratch;
    size_t scratch_room;
};

/* The number of frames of an operation that have no result yet. */
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
    bool urgent; /* some events must be reported immediately */
    struct report report; /* of the current run */
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

/* Increments the number of an operation's frames without a result. Returns false if no memory is available. */
bool pending_add(struct transfer *t, uint64_t operation);
/* Decrements that number. Returns whether it is now 0. */
bool pending_done(struct transfer *t, uint64_t operation);
/* Releases frames after a change of `due` or `sent`. */
void lane_release(struct lane *lane);
void lane_detach(struct transfer *t, struct lane *lane);
/* Reports the lane as lost, with an errno or 0, and detaches it. */
void lane_lose(struct transfer *t, struct lane *lane, int error);
struct event *report_event(struct transfer *t, enum event_kind kind, const struct lane *lane, uint64_t position);

/* ---- receiving.c, sending.c ---- */

/* Returns the earliest time at which a lane stops waiting for a whole result. Lanes that have reached this time
 * become readable. */
double await_whole(struct transfer *t);

bool receive_all(struct transfer *t);
bool send_all(struct transfer *t);

#endif
