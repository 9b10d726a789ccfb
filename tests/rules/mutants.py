"""Wrong rules: per rule, replacements in its text that the check must find.

A key may be listed with several mutants; each is ``(old text, new text)``. Conditions are dropped
by replacing them with nothing.
"""

MUTANTS: dict[str, list[tuple[str, str]]] = {
    "mul-comm": [('(Bin "mul" b a)', '(Bin "mul" b b)'), ('"mul"', '"mod"')],
    "add-comm": [('(Bin "add" b a)', '(Bin "add" b b)'), ('"add"', '"mod"')],
    "mul-assoc": [
        ('(Bin "mul" b c)', '(Bin "add" b c)'),
        ('(Bin "mul" a (Bin "mul" b c))', '(Bin "mul" a (Bin "mul" b b))'),
        # a select is no product: what it hides must not be multiplied
        (
            '(Bin "mul" a b) c) (Bin "mul" a (Bin "mul" b c))',
            '(Bin "sel" a b) c) (Bin "sel" a (Bin "mul" b c))',
        ),
    ],
    "const-mul": [
        ("(Const d (* a b)) :when", "(Const d a) :when"),
        ("(< (abs (* a b)) 1e37)", ""),
        ("(> (abs (* a b)) 1e-37)", ""),
    ],
    "mul-one": [("1.0", "2.0"), ("1.0", "-1.0")],
    "max-scale": [
        (":when ((> c 0.0))", ""),
        ("(> c 0.0)", "(< c 0.0)"),
        ('(Bin "mul" (Const d c) a))', "a)"),
    ],
    "factor": [
        ("(set-not-contains f k)", ""),
        ("(free a)", "(free b)"),
        ("[finite]", ""),
        ('"sum"', '"max"'),
    ],
    "pull-in": [
        ("(set-not-contains f k)", ""),
        ("(free a)", "(free b)"),
        ("[finite]", ""),
        ('"sum"', '"max"'),
    ],
    "sum-swap": [
        ('(Red "sum" j (Red "sum" k e))', '(Red "sum" j (Red "sum" j e))'),
        (
            '(Red "sum" k (Red "sum" j e)) (Red "sum" j (Red "sum" k e))',
            '(Red "sum" k (Red "max" j e)) (Red "max" j (Red "sum" k e))',
        ),
    ],
    "online": [
        ("(Const d -1.0)", "(Const d -2.0)"),
        ("(WSum k s v)", "(WSum k v s)"),
        ('"exp2"', '"recip"'),
    ],
    "online-1": [("(Const d -1.0)", "(Const d 1.0)"), ("(WSum k s (Const d 1.0))", "(WSum k s s)")],
    "online-scaled": [
        (":when ((> c 0.0))", ""),
        ('(WSum k (Bin "mul" (Const d c) s) v)', "(WSum k s v)"),
    ],
    "online-scaled-1": [
        (":when ((> c 0.0))", ""),
        ('(WSum k (Bin "mul" (Const d c) s) (Const d 1.0))', "(WSum k s (Const d 1.0))"),
    ],
    "eq-of-lt": [
        (":when ((integer a) (integer b))", ""),  # NaN equals nothing, not everything
        ('(Bin "lt" b a)) (Lit', '(Bin "lt" a b)) (Lit'),
    ],
    "eq-comm": [('(Bin "eq" b a)', '(Bin "eq" b b)'), ('"eq"', '"lt"')],
    "one-hot": [
        ("(set-not-contains f k)", ""),
        ('(!= d "i8")', ""),  # an i8 counts to 127 and starts again
        ('(!= d "u8")', ""),
        ("0 n", "0 3"),
        ("(IDyn i)))", "(IAx k)))"),
        ("(Guard (IDyn i) 0 n (Load b t (Put l k (IDyn i))))", "(Load b t (Put l k (IDyn i)))"),
    ],
    "one-hot-cast": [
        ("(set-not-contains f k)", ""),
        ('(!= d "i8")', ""),
        ('(!= d "u8")', ""),
        ("0 n", "1 n"),
        (
            "(Cast c (Guard (IDyn i) 0 n (Load b t (Put l k (IDyn i)))))",
            "(Guard (IDyn i) 0 n (Load b t (Put l k (IDyn i))))",
        ),
    ],
    "one-hot-product": [
        ("(set-not-contains f k)", ""),
        ('(!= d "i8")', ""),
        ('(!= d "u8")', ""),
        ("(IAx k))) b))) :when", "(IAx k))) a))) :when"),
        ('(Bin "mul" (Red', '(Bin "add" (Red'),
    ],
    "one-hot-sum": [
        ("(IAx k)) i) b))) :ruleset", "(IAx k)) i) a))) :ruleset"),
        ('(Bin "add" (Red', '(Bin "mul" (Red'),
    ],
    "put-here": [("(ICons i r)", "(ICons (IAx k) r)"), ("(set-not-contains f k)", "")],
    "put-later": [("(ICons x (Put r k i))", "(ICons x r)"), ("(set-not-contains f k)", "")],
    "select-factor": [("(set-not-contains f k)", ""), ("(free c)", "(free b)")],
    "guard-sum": [("(set-not-contains f k)", ""), ("(Guard i lo hi b)", "(Guard i hi lo b)")],
    "select-swap": [
        ('(Bin "sel" b (Bin "sel" a x))', '(Bin "sel" a x)'),
        ('(Bin "sel" b (Bin "sel" a x))', '(Bin "sel" b (Bin "sel" b x))'),
    ],
}
