from tilescope.ttgir.parser import parse_ttgir


def test_an_operation_without_a_result_has_no_type():
    body = parse_ttgir("""module {
  tt.func public @f(%x: i32) {
    %y = arith.addi %x, %x : i32
    tt.return
  }
}
""")
    ops = {op.name: op.type for op in body.walk()}
    assert (ops["arith.addi"], ops["tt.return"]) == ("i32", "")
