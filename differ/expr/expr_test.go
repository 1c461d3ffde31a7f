package expr_test

import (
	"strings"
	"testing"

	"github.com/keelson-io/keelson/differ/expr"
)

// A message that makes another text of a part of a secret would escape the redaction. A condition may
// call such functions, but none whose result is the product of its arguments.
func TestRefusedCalls(t *testing.T) {
	t.Parallel()
	for call, altering := range map[string]bool{
		"object.a.charAt(0)": true, "object.a.lowerAscii()": true, "object.a.reverse()": true, "object.a.split(',')[0]": true,
		"object.a.substring(1)": true, "object.a.trim()": true, "object.a.upperAscii()": true,
		"object.a.replace('a', 'b')": false, "['a'].join(object.a)": false, "'%s'.format([object.a])": false,
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			env := expr.NewEnvironment()
			err := expr.NewMessage(env, call).Compile()
			if err == nil || !strings.Contains(err.Error(), "there is no function") {
				t.Errorf("a message may call it: %v", err)
			}
			err = expr.NewWhen(env, call+" == 'b'", expr.WhenCost).Compile()
			if refused := err != nil; refused == altering {
				t.Errorf("in a condition: %v", err)
			}
		})
	}
}

// A condition of a file is checked when the file is read. An empty one is none.
func TestCompileCondition(t *testing.T) {
	t.Parallel()
	conditions := expr.NewConditions()
	if _, err := conditions.Compile("hooks[0].when", "cluster.name =="); err == nil || !strings.Contains(err.Error(), "hooks[0].when") {
		t.Errorf("half an expression: %v", err)
	}
	if is, err := conditions.Compile("when", `cluster.name == "a"`); err != nil || is == (expr.Condition{}) {
		t.Errorf("an expression: %+v, %v", is, err)
	}
	if is, err := conditions.Compile("when", ""); err != nil || is != (expr.Condition{}) {
		t.Errorf("no expression: %+v, %v", is, err)
	}
}
