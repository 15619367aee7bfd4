/* Two ranks send each other messages of several sizes, both at once, and check every byte; then all agree on a sum. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned char byte_of(int rank, int round, int at)
{
    return (unsigned char)(rank * 101 + round * 31 + at * 7);
}

static int exchange(int rank, int round, int size)
{
    unsigned char *sent = malloc(size), *got = calloc(1, size);
    int wrong = 0;
    for (int at = 0; at < size; at++)
        sent[at] = byte_of(rank, round, at);
    MPI_Sendrecv(sent, size, MPI_BYTE, 1 - rank, round, got, size, MPI_BYTE, 1 - rank, round, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int at = 0; at < size; at++)
        wrong += got[at] != byte_of(1 - rank, round, at);
    free(sent);
    free(got);
    return wrong;
}

int main(int count, char **words)
{
    static const int sizes[] = {1, 8, 4096, 65537, 1 << 20};
    int rank, ranks, wrong = 0, all = -1;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (int round = 0; round < 20; round++)
        wrong += exchange(rank, round, sizes[round % 5]);
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d: %d bytes are wrong\n", rank, ranks, all);
    MPI_Finalize();
    return all != 0;
}
