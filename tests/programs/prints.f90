! Each rank prints two lines. Once all have, rank 0 ends in the way that the argument says, and the others wait for the end; with
! `finalize` all end so.

program prints
    use mpi
    implicit none
    character(len=16) :: how
    integer :: rank, error, status

    call get_command_argument(1, how)
    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    print '(a, i0, a)', 'rank ', rank, ' begins'
    print '(a, i0, a)', 'rank ', rank, ' works'
    call MPI_Barrier(MPI_COMM_WORLD, error)
    do while (rank > 0 .and. how /= 'finalize')
        call sleep(1)
    end do
    if (how == 'abort') call MPI_Abort(MPI_COMM_WORLD, 3, error)
    if (how == 'killed') call kill(getpid(), 9, status)
    if (how == 'crash') call kill(getpid(), 11, status)
    call MPI_Finalize(error)
end program prints
