/* Sends payloads to the sockets. */

#define _GNU_SOURCE
#include "transfer.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Whether a lane may start to send its next frame. A lane without frames in flight may always do so. Otherwise ranks
 * whose credit is used up on different lanes would wait for each other. */
static bool has_credit(const struct transfer *t, const struct lane *lane)
{
    const struct frame *frame = frame_at(lane, lane->sent);
    return !frame->target || !lane->outstanding || t->outstanding + frame->header.nbytes <= t->credit;
}

/* Chooses the lane that sends next: a lane with a partly sent frame, otherwise the lane with the lowest row. */
static struct lane *choose(const struct transfer *t)
{
    struct lane *best = NULL;
    for (uint32_t i = 0; i < t->count; i++) {
        struct lane *lane = &t->lanes[i];
        if (lane->handle < 0 || !lane->writable || lane->sent == lane->pushed)
            continue;
        if (lane->offset)
            return lane;
        if (has_credit(t, lane) && (!best || frame_at(lane, lane->sent)->row < frame_at(best, best->sent)->row))
            best = lane;
    }
    return best;
}

/* Sends as much of one frame as the socket accepts. Returns false if it accepts nothing. */
static bool transmit(struct transfer *t, struct lane *lane)
{
    struct frame *frame = frame_at(lane, lane->sent);
    size_t size = HEADER + frame->header.nbytes;
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1};
    if (!lane->offset)
        frame->header.acknowledged = lane->due;
    if (lane->offset < HEADER) {
        parts[0] = (struct iovec){(uint8_t *)&frame->header + lane->offset, HEADER - lane->offset};
        parts[1] = (struct iovec){(void *)(uintptr_t)frame->payload, frame->header.nbytes};
        message.msg_iovlen = 2;
    } else {
        parts[0] = (struct iovec){(void *)(uintptr_t)(frame->payload + (lane->offset - HEADER)), size - lane->offset};
    }
    ssize_t done = sendmsg(lane->handle, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (done < 0) {
        if (errno == EINTR)
            return true;
        lane->writable = false;
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
            lane->broken = errno;
            lane->readable = true;
        }
        return false;
    }
    if (!lane->offset && frame->target) {
        lane->outstanding += frame->header.nbytes;
        t->outstanding += frame->header.nbytes;
    }
    lane->offset += (size_t)done;
    if (lane->offset == size) {
        lane->offset = 0;
        lane->sent++;
        lane_release(lane);
    }
    return true;
}

bool send_all(struct transfer *t)
{
    bool moved = false;
    struct lane *lane;
    while ((lane = choose(t)))
        moved |= transmit(t, lane);
    return moved;
}
