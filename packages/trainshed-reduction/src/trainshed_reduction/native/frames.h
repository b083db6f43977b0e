/* Receives frames from sockets. wire.py describes the frames. */

#ifndef TRAINSHED_FRAMES_H
#define TRAINSHED_FRAMES_H

#include "native.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The values of wire.Kind that C uses. */
enum kind { DATA = 6, FINAL = 7, RESULT = 8, LAST_KIND = 10 };
#define MAGIC "TSR2"
/* Maximum payload bytes of a frame with and without a chunk: wire.MAX_CHUNK and wire.MAX_TEXT. */
#define CHUNK (4u << 20)
#define TEXT 1024

struct header {
    char magic[4];
    uint8_t kind, dtype, reduction, zero;
    uint16_t rank, zeros;
    uint32_t chunk;
    uint64_t operation, total;
    uint32_t step, nbytes;
    uint64_t acknowledged, ordinal;
};
#define HEADER sizeof(struct header)
_Static_assert(HEADER == 56, "wire.HEADER");

/* An event for Python. */
struct event {
    int32_t kind, lane;
    uint64_t position, acknowledged;
    uint32_t offset, size; /* of the event's text */
};
/* Kinds of events, and the meaning of their `position` and text:
 * RESULT: a result arrived. position: its position.
 * MESSAGE: a frame without a chunk arrived. text: the frame.
 * LOST: the connection broke. position: an errno; 0: the peer closed the connection.
 * VIOLATION: a frame violates the protocol.
 * MISMATCH: a chunk does not match the chunks of the other ranks. text: its header. */
enum event_kind { EVENT_RESULT = 1, EVENT_MESSAGE, EVENT_LOST, EVENT_VIOLATION, EVENT_MISMATCH };

/* Events and their texts. The caller owns the memory. */
struct report {
    struct event *events;
    int filled, capacity;
    char *text;
    size_t text_used, text_room;
};

struct event *report_add(struct report *report, enum event_kind kind, uint32_t lane, uint64_t position);
void report_text(struct report *report, struct event *event, const void *bytes, size_t count);
/* Whether the report lacks space for the events of one read, which may complete two frames. */
bool report_is_full(const struct report *report);

/* An incoming frame. When the header is complete, the owner sets `payload` to the memory for the payload. */
struct incoming {
    struct header header;
    size_t got; /* received bytes of header and payload */
    uint8_t *payload;
    uint32_t wakes_at; /* SO_RCVLOWAT: the socket becomes readable when so many bytes have arrived; 0: the default */
    bool is_single;    /* do not read beyond the end of this frame, because the next one may have to wait */
};

/* Called when a frame's header (`begin`) or the whole frame (`end`) is complete. Returns false to reject the frame and
 * stop reading. */
typedef bool (*frame_step)(void *whose);

/* Reads once. A payload is read together with the next frame's header. Returns the number of bytes; 0: the peer has
 * closed the connection; below 0: -errno (-EAGAIN: no data is available). */
ssize_t incoming_read(struct incoming *incoming, int handle, frame_step begin, frame_step end, void *whose);

/* Whether the whole payload has arrived, so that one read returns all of it. Call this before reading any byte of
 * the payload. If the result is false, the socket becomes readable when the whole payload has arrived, unless the
 * payload is too long. */
bool incoming_is_whole(struct incoming *incoming, int handle);

/* Whether a header belongs to a chunk of an operation, and the chunk's length fits the operation. */
bool is_chunk(const struct header *header);
/* Whether a header belongs to a valid frame without a chunk. */
bool is_short(const struct header *header);

/* Returns the size of an element in bytes. */
uint32_t width_of(int dtype);

/* Returns the same time as Python's time.monotonic, in seconds. */
double now(void);
#define NEVER 1e300

static inline double least(double a, double b)
{
    return a < b ? a : b;
}

#endif
