# For those who have make: every target is the ./dev command of the same name.
.PHONY: help setup demo up test test-all test-gpu check bench bench-tuning bench-reduction test-runtimes test-programs test-numerics test-floors sim mutants chaos docs docs-site fmt lock clean
help setup demo up test test-all test-gpu check bench bench-tuning bench-reduction test-runtimes test-programs test-numerics test-floors sim mutants chaos docs docs-site fmt lock clean:
	@./dev $@
