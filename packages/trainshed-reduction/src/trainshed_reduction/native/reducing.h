/* Declarations that the files of a reducer's groups share. reducing.c describes the groups. */

#ifndef TRAINSHED_REDUCING_H
#define TRAINSHED_REDUCING_H

#include "frames.h"
#include "poller.h"

/* Memory of a payload. `uses`: its reference count. */
struct block {
    struct block *next; /* the next spare block */
    uint32_t uses, size;
    uint8_t room; /* base-2 logarithm of the capacity */
    _Alignas(64) uint8_t data[];
};

#define ROOMS 24
struct blocks {
    struct block *spare[ROOMS];
    uint64_t spare_bytes, used_bytes;
};

/* ---- rows.c ---- */

/* Returns a block whose reference count is 1; NULL: no memory. */
struct block *block_take(struct blocks *blocks, uint32_t size);
void block_drop(struct blocks *blocks, struct block *block); /* ignores NULL */
void blocks_free(struct blocks *blocks);

/* The chunks that the ranks have sent for one position. They are added in the order of ranks, so that the sum does
 * not depend on the order of arrival. */
struct row {
    struct header shape; /* header of the first chunk */
    double since;
    uint32_t arrived, next;
    struct block *first, *total, *final, **early; /* `early`: by rank */
    uint16_t *order;                              /* ranks in order of arrival */
    bool *takes;                                  /* by rank: whether it needs the result */
};

/* Initializes a row. Returns false if no memory is available. */
bool row_begin(struct row *row, uint32_t world, const struct header *shape, double at);
/* Whether a chunk with this header belongs to the row. */
bool row_agrees(const struct row *row, const struct header *header);
/* Adds a chunk. The row then owns the block. A FINAL chunk is the row's result and replaces all sums. Returns false
 * if no memory is available. */
bool row_add(struct blocks *blocks, struct row *row, const struct header *header, struct block *block, uint32_t world);
/* Returns a new reference to the result. Before the call, all ranks must have sent a chunk, or one rank the result. */
struct block *row_result(struct row *row, uint32_t world);
void row_end(struct blocks *blocks, struct row *row, uint32_t world);

struct out {
    struct header header;
    struct block *payload; /* NULL: none */
};

struct group;

/* A worker's connection. */
struct member {
    struct group *group; /* NULL: it is in no running group, and the caller receives all frames */
    struct member *next; /* the next member with pending work */
    int handle, error;   /* handle: -1 if the connection is broken; error: an errno to report */
    uint32_t slot;
    uint16_t rank;
    bool readable, writable, is_due;
    bool is_stopped; /* an event was reported; nothing is read until reducer_resume */
    bool is_leaving; /* only unsent frames are sent; received data is discarded */
    struct incoming incoming;
    struct block *payload; /* of the incoming chunk; NULL: the incoming frame has none and is received into `text` */
    uint8_t text[TEXT];
    uint64_t position;     /* of the member's next chunk */
    uint64_t acknowledged, received, ordinal, unanswered, unsent;
    struct out *out; /* a ring buffer */
    uint32_t out_room, out_first, out_count;
    size_t offset; /* bytes of the first frame that are sent, including its header */
};

struct group {
    uint32_t world;
    struct member **members; /* by rank; NULL: the rank has left */
    uint32_t lacking;        /* number of ranks that had left before the group started */
    uint32_t present;        /* number of members; the group ends when the last one leaves */
    uint64_t head, parted;   /* head: oldest row's position; parted: first one that a departed rank has not sent */
    struct row *rows;        /* a ring buffer from `head` on */
    size_t room;
    uint64_t begun;          /* number of rows with some but not all chunks */
    int64_t operation; /* the latest operation with a finished chunk (-1: none); `ordinal` is its ordinal */
    uint64_t ordinal;
};

struct reducer {
    struct poller poller;
    int elsewhere;           /* a file descriptor of the caller; it has the slot 0 */
    struct member **members; /* by slot */
    uint32_t slots;
    struct member *due, **due_end; /* members with pending work, in the order of their turns */
    struct blocks blocks;
    uint64_t moved;       /* bytes received and sent so far */
    struct report report; /* of the current run */
};

/* ---- members.c ---- */

/* Marks a member as having pending work. */
void become_due(struct reducer *r, struct member *member);
struct member *take_due(struct reducer *r);
/* Sends and reads as much as possible in one turn of a member. */
void member_serve(struct reducer *r, struct member *member);
/* Queues a frame after all other unsent frames. It takes over one reference to the payload. Returns false if no
 * memory is available. */
bool member_send(struct reducer *r, struct member *member, const struct header *header, struct block *payload);
/* Removes a member from its group, and drops its incomplete chunk. */
void member_part(struct reducer *r, struct member *member);
/* Frees a member after `member_part`. */
void member_end(struct reducer *r, struct member *member);
struct row *row_at(const struct group *group, uint64_t position);

#endif
