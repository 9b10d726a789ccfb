/* Counts the lines of Python that a thread runs: a tracer for PyEval_SetTrace, in C so that a test
 * takes little longer than what it counts. */
long lines;

int on_event(void *self, void *frame, int what, void *arg) {
  (void)self, (void)frame, (void)arg;
  lines += what == 2; /* PyTrace_LINE */
  return 0;
}
