"""`bide demo`: an order desk on a server and workers of its own, and books that must balance.

Orders come from a CSV file. For each, the desk enqueues a notification and a cancellation at the
payment deadline; a payment in time takes the cancellation back. One of the workers is killed in
the middle of it. In the end a checker goes through the journal that the jobs wrote, order by
order: nothing early, nothing lost, nothing twice without a cause.

    orders    reads the CSV file                  desk     plays the orders
    tasks     the jobs                            crew     the worker processes
    journal   what happened, a line an event      play     conducts a run
    tally     counts along while it happens       view     the progress
    books     the checker, alone: python -m bide.demo.books ORDERS.csv JOURNAL
    report    the table and the histogram
"""
