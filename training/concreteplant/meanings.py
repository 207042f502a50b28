"""Which common words may both be true of one thing in a picture: a small table.

It stands in where there is no WordNet, and adds what WordNet lacks: that a "surfer" may be a "man"
is no matter of synonyms. Lemmas, lower case.
"""

from __future__ import annotations

from collections.abc import Collection

# Words of one line may name the same thing.
_ALIKE = """
round circular oval
square rectangular
man guy gentleman male dude fellow person player adult husband father dad son groom senior
woman lady female girl person player adult wife mother mom mum bride daughter gal
boy child kid toddler baby infant youth youngster teenager son male student player person guy
  brother
girl child kid toddler baby infant youth youngster teenager daughter female student player
  person sister
man boy male teenager
baby infant newborn toddler child kid
cat kitten kitty feline
dog puppy pup hound poodle terrier bulldog dachshund collie spaniel
gull seagull
duck goose
hen rooster chicken
boat ship vessel ferry
sailboat yacht
canoe kayak rowboat raft
cow bull calf cattle ox steer bovine livestock herd
sheep lamb ram goat livestock herd
horse pony foal colt mare stallion herd
bear teddy cub
bike bicycle cycle
motorcycle motorbike bike moped scooter motor harley
car automobile sedan taxi cab vehicle van suv jeep
truck pickup lorry van vehicle semi trailer tractor
bus coach vehicle trolley van shuttle tram
train locomotive engine railway subway tram trolley caboose
plane airplane aeroplane jet aircraft airliner jetliner biplane propeller
street road highway avenue lane roadway pavement intersection crosswalk city town asphalt
  boulevard
sidewalk pavement walkway path curb trail road
couch sofa loveseat futon settee furniture
chair seat armchair stool recliner bench furniture rocker
table desk counter countertop stand furniture surface tabletop
bed mattress bunk cot furniture
cabinet cupboard drawer dresser shelf bookcase bookshelf furniture wardrobe
television tv screen monitor set
computer laptop pc notebook monitor desktop screen
phone cellphone telephone smartphone cell mobile
refrigerator fridge freezer icebox appliance
stove oven range burner cooker appliance stovetop
microwave oven appliance
bathroom restroom washroom lavatory toilet room stall
toilet commode urinal bowl
sink basin washbasin
bathtub tub bath shower
rug carpet mat floor flooring
curtain drape blind shade
picture photo photograph image painting portrait print snapshot poster
sea ocean water beach wave bay coast harbor lake
water lake pond river stream ocean pool sea pier
beach shore sand coast seashore
hill mountain slope hillside cliff mountainside
snow slope ski mountain hill ice
field grass meadow pasture lawn yard plain park grassland area farm
forest wood jungle tree grove brush
tree plant bush branch shrub palm forest foliage
building house skyscraper structure home tower church barn cottage apartment shop store
city town street downtown village
store shop market restaurant mall
room bedroom kitchen bathroom apartment office den lounge
cup mug glass
plate dish platter saucer tray
bowl dish
pot pan kettle
bag purse handbag suitcase luggage backpack sack briefcase baggage pack tote
suitcase luggage baggage briefcase trunk
hat cap helmet beanie visor
coat jacket sweater hoodie blazer
shirt top t-shirt blouse tee jersey sweater
pants jeans trousers slacks shorts
dress gown skirt
suit tuxedo jacket
glasses sunglasses goggles spectacles eyeglasses
tie necktie bowtie
clothes clothing outfit uniform suit apparel costume shirt gear
bread bun roll toast loaf bagel baguette
sandwich burger hamburger sub panini
hotdog sausage frank
pizza pie slice
cake cupcake pastry dessert cheesecake pie brownie
donut doughnut pastry dessert
potato fries chips
pasta spaghetti noodle macaroni
wine beer beverage drink alcohol champagne liquor
coffee tea latte espresso beverage drink
knife blade cutlery utensil silverware
fork spoon utensil cutlery silverware
bat stick club
racket racquet
ball baseball softball
skateboard board longboard
surfboard board
snowboard board ski
frisbee disc disk
toy doll teddy stuffed plaything
sign billboard board poster
light lamp lantern bulb
clock watch
wall brick stone tile
fence gate railing rail
stone rock brick pebble boulder
window glass pane
sky cloud air
cloud overcast
box carton crate container case package
basket container bin bucket
bottle container jug jar
bench seat
player batter pitcher catcher baseman outfielder umpire athlete hitter baseball
rider cyclist biker motorcyclist bicyclist jockey
surfer rider skier snowboarder skateboarder skater boarder athlete
cop policeman police officer guard
field court park arena stadium diamond
adult parent elder
luggage bag
big large huge giant enormous massive gigantic great tall
small little tiny miniature short mini young
gray grey silver
brown tan wooden beige chocolate
white cream pale beige blonde
gold golden yellow blond blonde orange
pink purple violet red magenta
red maroon orange crimson
blue teal turquoise navy aqua
black dark
two couple pair
woods forest
counter countertop
hold grab grasp carry grip clutch have use lift show
sit rest lie lay perch lean lounge relax wait seat squat
stand pose wait lean rest stop
walk stroll hike wander travel go move cross step march
run jog sprint race move chase
ride drive travel go move race
look stare gaze watch peer see glance face
eat chew bite graze munch feed dine consume taste
jump leap hop fly flip
talk speak chat converse use
play enjoy swing hit
park stop sit stand
cut slice chop carve
smile laugh grin pose
hit swing strike bat play
throw toss pitch
cook bake prepare grill make fry
surf ride
ski ride skate
fly soar glide
"""

# The first word of a line is true of all the others.
_ABOVE = """
bird duck goose gull seagull pigeon parrot owl swan pelican hawk fowl flock hen rooster chicken
flower rose tulip daisy plant blossom bouquet lily sunflower
vegetable broccoli carrot tomato lettuce salad pepper onion cabbage celery green bean
  cauliflower veggie
fruit apple banana orange pear berry strawberry grape lemon peach
meat beef chicken pork steak ham turkey sausage bacon
boat sailboat canoe kayak yacht ferry raft motorboat barge gondola rowboat
shoe sneaker boot sandal
vehicle car truck bus van taxi motorcycle motorbike train tram bike bicycle scooter jeep
  tractor boat cab suv plane airplane
animal dog cat horse cow sheep goat elephant giraffe zebra bear bird lion tiger monkey kitten
  puppy pig deer duck wildlife mammal pet
pet dog cat kitten puppy bird
mammal dog cat horse cow sheep elephant giraffe zebra bear
food pizza sandwich meat fruit vegetable salad bread cake hotdog burger soup pasta rice
  chicken broccoli dish meal snack breakfast lunch dinner dessert cheese egg fries
meal food pizza sandwich salad breakfast lunch dinner dish soup pasta
snack food sandwich fruit cookie donut
dessert cake pie donut cookie pastry cupcake
furniture chair table couch sofa bed desk bench dresser cabinet shelf stool
utensil fork knife spoon spatula
clothing shirt coat hat dress suit tie pants jacket shoe
appliance stove oven refrigerator microwave toaster blender dishwasher fridge
equipment ski snowboard helmet racket bat computer keyboard
ground grass dirt floor sand street road snow field sidewalk
floor carpet rug tile wood ground
surface table floor counter road street water ground
container bowl box bottle basket jar cup can vase
vase pot jar container
instrument guitar piano drum
plant flower tree bush
liquid water juice coffee milk wine beer
person man woman boy girl child kid lady guy baby adult toddler people player surfer skier rider
"""

# Roles that a person may have: they say neither sex nor age, and often go together.
_ROLES = """
player batter pitcher catcher umpire surfer skier snowboarder skateboarder skater rider cyclist
biker driver chef cook officer policeman cop soldier worker farmer vendor pedestrian spectator
student teacher passenger tourist athlete performer musician singer artist waiter waitress doctor
dentist nurse businessman businesswoman guest customer shopper runner jogger swimmer boarder fan
bystander onlooker jockey cowboy clown hiker sailor photographer friend family crowd team couple
audience bather teen skateboard baseman fielder outfielder hitter competitor people person human
individual someone group traveler motorcyclist bicyclist fisherman biker crew employee owner
"""
_MEN = frozenset(("man", "boy", "guy", "gentleman", "male", "dude", "fellow", "husband", "father"))
_WOMEN = frozenset(("woman", "girl", "lady", "female", "wife", "mother", "mom", "bride"))
_PERSONS = """
man woman boy girl child kid guy lady baby toddler person people adult gentleman male female infant
teenager youth youngster dude fellow husband wife father mother mom dad son daughter groom bride
individual human crowd group family couple team
"""

# Nouns that name a part, a place or a measure of something else: to change them rarely makes a
# caption false, and they fit few places.
_VAGUE = """
action addition air amount angle another anything area assortment back background bit body bottom
bunch camera case center centre close close-up closeup collection color colour corner couple day
direction display distance edge end event everything face field-of-view foreground front game
group half home image inside item kind left life line look lot mid midair middle mode motion name
next nothing number object one order other others outside pair part photo photograph photography
picture piece pile place point portion position process range right row scene section selection
self selfie series set shape shot side size slice something sort spot stack stand stuff style
thing time top trick type use variety view way while work world
"""
VAGUE = frozenset(_VAGUE.split())

# Adjectives by what they tell of a thing: one of a line excludes the others, near enough.
_ATTRIBUTES = """
red orange yellow green blue purple pink brown black white gray grey silver golden gold tan
  beige turquoise maroon teal
big large huge giant enormous massive small little tiny miniature
young old elderly
tall short
long short
wooden metal plastic glass concrete brick metallic leather stone steel wicker marble tiled granite
round square rectangular circular triangular oval
wet dry
open closed
empty full
sunny cloudy rainy snowy overcast foggy
dark bright light
clean dirty
hot cold
striped plaid checkered floral polka-dotted
male female
asian african european american chinese japanese indian
narrow wide
thin thick fat
hairy bald shaggy furry
two three four five six seven eight nine ten
grassy sandy snowy rocky muddy dusty
fried grilled baked boiled raw cooked
fresh rotten stale
modern old antique vintage
indoor outdoor
left right
upper lower
happy sad
broken intact
electric gas
"""

# What another noun, after it, is made of: true beside most other nouns in that place.
MATERIALS = frozenset(
    ("wood", "metal", "glass", "leather", "stone", "brick", "plastic", "steel", "concrete", "paper")
)

# Prepositions of place: one of a line may hold where another does.
_PLACES = """
in inside within into
on upon atop over above onto across
over above
under below beneath underneath
behind
beside near by against along alongside around
between among
outside
"""


def _lines(text: str) -> list[list[str]]:
    # An indented line goes on with the one before.
    return [line.split() for line in text.strip().replace("\n  ", " ").splitlines()]


def _meanings() -> dict[str, set[str]]:
    near: dict[str, set[str]] = {}

    def add(first: str, second: str) -> None:
        near.setdefault(first, set()).add(second)
        near.setdefault(second, set()).add(first)

    for words in (*_lines(_ALIKE), *_lines(_PLACES)):
        for word in words:
            for other in words:
                add(word, other)
    for above, *below in _lines(_ABOVE):
        for word in below:
            add(above, word)
    for role in _ROLES.split():
        for person in (*_PERSONS.split(), *_ROLES.split()):
            add(role, person)
    return near


_NEAR = _meanings()
_KINDS = _lines(_ATTRIBUTES)
PLACES = frozenset(word for words in _lines(_PLACES) for word in words)
PERSONS = frozenset((*_PERSONS.split(), *_ROLES.split()))


def may_both_hold(first: str, second: str) -> bool:
    """Whether the table says that two lemmas may be true of one thing.

    Of two words, as in "tennis player", the last counts.
    """
    first, second = first.split()[-1], second.split()[-1]
    return first == second or second in _NEAR.get(first, ())


def clashes_with_pronoun(lemma: str, present: Collection[str]) -> bool:
    """Whether a caption's pronouns speak of the other sex: no "guy" beside "her head"."""
    last = lemma.split()[-1]
    if last in _MEN:
        return "she" in present or "her" in present
    return last in _WOMEN and not {"he", "his", "him"}.isdisjoint(present)


def attribute_rivals(word: str) -> frozenset[str]:
    """The adjectives and numbers that exclude this one; none for a word that is in no list."""
    return frozenset(
        other for words in _KINDS if word in words for other in words if other != word
    ) - _NEAR.get(word, set())
