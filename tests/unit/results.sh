#!/usr/bin/env bash
# launch/results.py makes tables from made-up measurements, none without measurements, and messages for files that are
# no measurements. Skipped without python3.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
command -v python3 >/dev/null || { echo "skipped: no python3" >&2; exit 77; }
results=$repository/launch/results.py

measured() { # date, tokens/s
    cat <<EOF_JSON
{"gpu":"Card","date":"$1T10:00:00Z","commit":"abc","driver":"580.1","info":["NCCL 2"]}
{"bench":"step","d_model":768,"n_layer":24,"precision":"bf16","batch":16,"seq_len":2048,"step_ms":100,"tokens_per_s":$2,"mfu":0.25,"peak_memory_mb":4300}
{"bench":"machine","precision":"bf16","copy_gb_per_s":4000,"gemm_bf16_gflops":700000,"gemm_fp32_gflops":50000,"gexp2_per_s":4000}
{"bench":"op","op":"gemm","calls":24,"ms":0.5,"floor_ms":0.25,"bound":"gemm"}
{"bench":"op","op":"gemm","calls":1,"ms":3,"floor_ms":3,"bound":"copy"}
{"bench":"op","op":"spin","calls":0,"ms":9,"floor_ms":1,"bound":"exp"}
{"bench":"ncu","kernel":"scan_forward_registers","metrics":{"Duration":"412.10 us","Issue Slots Busy":"61.00 %"}}
EOF_JSON
}
measured 2026-01-02 1000 >old.jsonl
sed -n '1p;s/"batch":16/"batch":4/p' old.jsonl >other.jsonl # the rest of that day, in another call
measured 2026-01-03 327680 >new.jsonl
"$results" old.jsonl other.jsonl new.jsonl >tables.md
check "the newest of a step is told" grep -qF '| Card | 130M, bf16 | 16 x 2048 | 100.0 ms | 327,680 | 25 % | 4.2 GiB | 2026-01-03, abc |' tables.md
check "… with what an earlier call measured" grep -qF '| 4 x 2048 | 100.0 ms | 1,000 | 25 % | 4.2 GiB | 2026-01-02, abc |' tables.md
check "… and nothing twice" test "$(grep -c '^| Card | 130M' tables.md)" -eq 2
check "… in whatever order they are given" cmp <(sort tables.md) <("$results" new.jsonl other.jsonl old.jsonl | sort)
# 24 · 0.5 + 3 ms, 24 · 0.25 + 3 ms.
check "an op's calls are added up" grep -qF '| gemm | 15.00 | 9.00 | copy, gemm | 60 % |' tables.md
check "what a step does not call is left out" test "$(grep -c spin tables.md)" -eq 0
check "a kernel's launch has what the profiler says" grep -qxF '| Card | scan_forward_registers | 412.10 us | 61.00 % |' tables.md

printf 'before\n<!-- results -->\nold\n<!-- /results -->\nafter\n' >page.md
check "the tables go into a page" "$results" --into page.md new.jsonl
check "… between what stood there" test "$(sed -n '1p;$p' page.md | tr '\n' ' ')" = "before after "
check "… in place of the old ones" test "$(grep -c '^old$' page.md)" -eq 0
cp page.md again.md
check "… once" "$results" --into again.md new.jsonl
check "… and the same again" cmp page.md again.md

cp "$repository/launch/README.md" manual.md
check "the manual has a place for them" "$results" --into manual.md new.jsonl

mkdir launch
cp "$results" launch/
check "nothing measured" launch/results.py >empty.md
check "… is said in both tables" test "$(grep -c 'not measured yet' empty.md)" -eq 2

refuse() { # description, file
    check "$1 is refused" bash -c '! "$@" >/dev/null 2>refused.txt' _ "$results" "$2"
    check "… by name: $(cat refused.txt)" grep -qF "$2" refused.txt
}
sed 1d new.jsonl >half.jsonl
refuse "a file that does not name the machine" half.jsonl
refuse "no file" nosuch.jsonl
head -c 100 new.jsonl >torn.jsonl
refuse "a torn file" torn.jsonl
sed 's/"mfu"/"share"/' new.jsonl >other.jsonl
refuse "a row that lacks a number" other.jsonl
finish
