# For those who have make: `make COMMAND` is `./dev COMMAND`.
.DEFAULT_GOAL := help
%: always
	@./dev $@
always Makefile: ;
.PHONY: always
