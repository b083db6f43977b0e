/* Frames as they come out of a socket; wire.py says what they are. */

#ifndef TRAINSHED_FRAMES_H
#define TRAINSHED_FRAMES_H

#include "native.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* wire.Kind, as far as C has to know it. */
enum kind { DATA = 6, FINAL = 7, RESULT = 8, LAST_KIND = 10 };
#define MAGIC "TSR2"
/* Bytes of payload of a frame at most, with a chunk and without: wire.MAX_CHUNK and wire.MAX_TEXT. */
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

/* What has happened, for Python. */
struct event {
    int32_t kind, lane;
    uint64_t position, acknowledged;
    uint32_t offset, size; /* of its text */
};
/* What an event's `position` and text are.
 * RESULT: a result's; -. MESSAGE: -; the frame, which is no chunk. LOST: errno, 0 = closed by the other side; -.
 * STRANGE, of a frame that nobody sends who keeps to the protocol: neither. ODD, of a chunk that does not belong to those
 * of the other ranks: -; its header. */
enum event_kind { EVENT_RESULT = 1, EVENT_MESSAGE, EVENT_LOST, EVENT_STRANGE, EVENT_ODD };

/* Events and their texts, in memory of the caller's. */
struct report {
    struct event *events;
    int filled, capacity;
    char *text;
    size_t text_used, text_room;
};

struct event *report_add(struct report *report, enum event_kind kind, uint32_t lane, uint64_t position);
void report_text(struct report *report, struct event *event, const void *bytes, size_t count);
/* Whether there is no room for what reading once may tell: the end of a frame, and of the one after it. */
bool report_is_full(const struct report *report);

/* The frame that is coming in. Its payload goes to `payload`, which who owns it sets when the header is there. */
struct incoming {
    struct header header;
    size_t got; /* of header and payload */
    uint8_t *payload;
    uint32_t wakes_at; /* bytes that must be there before the system tells of them; 0: as it likes */
    bool is_single;    /* nothing is read beyond its end: what follows may have to wait */
};

/* False: the frame is not to be followed, and nothing is read any more. `begin`: the header is there. `end`: all of
 * it is. */
typedef bool (*frame_step)(void *whose);

/* Reads once, a payload together with the header after it. How many bytes; 0: the other side has closed it;
 * below 0: -errno, of which -EAGAIN says that nothing is there. */
ssize_t incoming_read(struct incoming *incoming, int handle, frame_step begin, frame_step end, void *whose);

/* Whether the whole payload, of which nothing was read yet, is there, so that reading it once reads it all. If not, the
 * system tells of it when it is, unless it is too long for that. */
bool incoming_is_whole(struct incoming *incoming, int handle);

/* Whether it is a chunk of an operation, and as long as it says there. */
bool is_chunk(const struct header *header);
/* Whether it is a frame that carries no chunk. */
bool is_short(const struct header *header);

/* Bytes of an element. */
uint32_t width_of(int dtype);

/* Seconds, as Python's time.monotonic. */
double now(void);
#define NEVER 1e300

static inline double least(double a, double b)
{
    return a < b ? a : b;
}

#endif
